"""Networks and priors put together as modules, without training code."""
