"""scikit-learn's own checks of estimators; those that are expected to fail say why."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from gppvae import GPPVAE, VAE

TABLE = "fit(samples, table): the second argument is a table of named columns, not a target y"
WORDS = "the error is ours, one sentence, and not in scikit-learn's words"
OF_A_VAE = {
    "check_n_features_in_after_fitting": WORDS + ": a wrong shape is named as a shape, since samples may be images",
    "check_complex_data": WORDS,
    "check_dtype_object": WORDS + ": arrays of objects are refused, never converted one by one",
    "check_estimators_empty_data_messages": WORDS,
    "check_transformer_data_not_an_array": "samples need shape, dtype and indexing, so that they can stay on disk",
    "check_fit2d_predict1d": WORDS + ": a sample may have any shape, so nobody is told to reshape",
}
OF_A_GPPVAE = dict.fromkeys(
    (
        "check_fit_score_takes_y", "check_estimators_overwrite_params", "check_dont_overwrite_parameters",
        "check_estimators_fit_returns_self", "check_readonly_memmap_input", "check_n_features_in_after_fitting",
        "check_positive_only_tag_during_fit", "check_estimators_dtypes", "check_complex_data", "check_dtype_object",
        "check_estimators_empty_data_messages", "check_pipeline_consistency", "check_estimators_nan_inf",
        "check_estimator_sparse_tag", "check_estimator_sparse_array", "check_estimator_sparse_matrix",
        "check_estimators_pickle", "check_f_contiguous_array_estimator", "check_methods_sample_order_invariance",
        "check_methods_subset_invariance", "check_fit2d_1sample", "check_fit2d_1feature", "check_dict_unchanged",
        "check_fit_idempotent", "check_fit_check_is_fitted", "check_n_features_in", "check_fit1d",
        "check_fit2d_predict1d",
    ),
    TABLE,
)  # fmt: skip
OF_A_GPPVAE["check_estimators_unfitted"] = "NotFittedError is a class of ours: scikit-learn is no dependency"
ROUNDING = ("check_methods_sample_order_invariance", "check_methods_subset_invariance")
SMALL = {"network": "mlp", "width": 4, "epochs": 1, "batch_size": 256}


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # estimators do not inherit from BaseEstimator: scikit-learn is no dependency
    all_checks = parametrize_with_checks(
        [VAE(2, **SMALL), GPPVAE("Constant()", 2, **SMALL)],
        expected_failed_checks=lambda estimator: OF_A_VAE if isinstance(estimator, VAE) else OF_A_GPPVAE,
    )


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning", "ignore::FutureWarning")
@all_checks
def test_conventions_of_scikit_learn(estimator, check) -> None:
    if isinstance(estimator, VAE) and check.func.__name__ in ROUNDING:
        pytest.skip("networks are float32: the last digits of a row depend on its place in the batch")
    check(estimator)


def test_a_vae_is_a_step_of_a_pipeline(rng: np.random.Generator) -> None:
    samples = rng.normal(size=(20, 5)).astype(np.float32)
    steps = make_pipeline(StandardScaler(), VAE(2, **SMALL))
    latents = steps.fit_transform(samples)
    assert latents.shape == (20, 2)
    np.testing.assert_array_equal(latents, steps[1].encode(steps[0].transform(samples)))


def test_fitted_or_not_is_known_to_scikit_learn(rng: np.random.Generator) -> None:
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    model = GPPVAE("RBF(t)", 2, inference="global", **SMALL)
    with pytest.raises(NotFittedError):
        check_is_fitted(model)
    with pytest.raises(AttributeError, match="once fit"):
        _ = model.n_features_in_
    model.fit(rng.normal(size=(6, 4)).astype(np.float32), pd.DataFrame({"t": np.arange(6.0)}), progress=False)
    check_is_fitted(model)
    assert model.n_features_in_ == 4
