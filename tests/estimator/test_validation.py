"""Errors at rows that are not trained on: in the unit of the data for the log, in the likelihood's for decisions."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from gppvae import GPPVAE
from gppvae.data.arrays import Samples
from gppvae.data.batches import Batch, Epoch
from gppvae.data.table import Rows
from gppvae.estimator.validation import row_errors
from gppvae.likelihoods import Likelihood, ScaledGaussian
from gppvae.likelihoods.counts import Poisson
from gppvae.models.vae import Autoencoder

Y = np.float32([[1.0, 2e4, 3.0], [0.0, np.nan, 5.0], [2.0, 1e4, np.nan], [np.nan, 3e4, 1.0], [1.0, 4e4, 0.0]])
PREDICTED = np.float32([[1.5, 1e4, 2.0]] * 5)
STD = np.float32([0.5, 1e4, 2.0])


def test_labels_in_two_orders_are_refused() -> None:
    """Unless they only count the rows: a permuted table beside samples that count anew is rightly paired."""
    rng = np.random.default_rng(0)
    for labels, fits in (([f"s{n}" for n in range(40)], False), (range(100, 140), False), (range(40), True)):
        table = pd.DataFrame({"time": np.linspace(0.0, 6.0, 40)}, index=pd.Index(labels))
        samples = pd.DataFrame(np.sin(table[["time"]].to_numpy() + np.arange(3)), index=table.index, columns=[*"abc"])
        model = GPPVAE("RBF(time)", epochs=1, hold_out=0.0).fit(samples, table, progress=False)
        order = rng.permutation(40)
        both = samples.iloc[order], table.iloc[order]
        assert model.score(*both) == pytest.approx(model.score(samples, table), rel=1e-3)
        model.score(both[0].to_numpy(), both[1])
        model.score(both[0], {"time": both[1]["time"].to_numpy()})
        for ask in (model.fit, model.score, model.impute, model.update, model.calibrate):
            if fits:
                ask(samples, both[1])
                continue
            with pytest.raises(
                ValueError, match=r"same labels in two \(number 0 is .* give samples\.loc\[table\.index\]"
            ):
                ask(samples, both[1])


def errors(likelihood: Likelihood) -> tuple[float, np.ndarray]:
    epoch = Epoch(Samples(Y, missing="mask"), Rows({}, 5), 2, None, torch.device("cpu"))
    autoencoder = Autoencoder(nn.Identity(), nn.Identity(), likelihood)

    def predict(batch: Batch) -> torch.Tensor:
        return torch.from_numpy(PREDICTED)[batch.index]

    mean, by_row = row_errors(epoch, autoencoder, predict)
    return mean, by_row.numpy()


def test_errors_of_rows_are_in_the_units_of_the_likelihood() -> None:
    likelihood = ScaledGaussian()
    likelihood.adapt((3,))
    likelihood.measure(torch.zeros(3), torch.from_numpy(STD))
    mean, by_row = errors(likelihood)
    plain, relative, observed = [], np.zeros(5), 0
    for n in range(5):
        for j in range(3):
            if not np.isnan(Y[n, j]):
                plain.append(float(Y[n, j] - PREDICTED[n, j]) ** 2)
                relative[n] += plain[-1] / float(STD[j]) ** 2
                observed += 1
    np.testing.assert_allclose(mean, np.mean(plain), rtol=1e-6)
    np.testing.assert_allclose(by_row, relative * 5 / observed, rtol=1e-6)
    np.testing.assert_allclose(by_row.mean(), relative.sum() / observed, rtol=1e-6)


def test_counts_are_judged_by_their_deviance() -> None:
    mean, by_row = errors(Poisson(size=None))
    deviance = np.zeros(5)
    for n in range(5):
        for y, expected in zip(Y[n].astype(float), PREDICTED[n].astype(float), strict=True):
            if not np.isnan(y):
                deviance[n] += 2.0 * ((y * np.log(y / expected) if y > 0 else 0.0) - y + expected)
    np.testing.assert_allclose(by_row * 12 / 5, deviance, rtol=1e-4)
    np.testing.assert_allclose(mean, deviance.sum() / 12, rtol=1e-4)
