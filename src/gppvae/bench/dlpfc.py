"""A section of human cortex (10x Visium): counts of genes at held-out spots, and the layers found in the latents."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
from scipy.cluster.vq import kmeans2
from scipy.optimize import minimize_scalar
from scipy.spatial import cKDTree

from gppvae.bench.field import rbf
from gppvae.bench.task import ARI, DEVIANCE, Answer, Columns, Question, Target, Task, error_of, errors_of
from gppvae.estimator.gppvae import GPPVAE

KERNEL = "Matern(x, y, nu=1.5)"
SECTION, HELD_OUT, SEED = "151507", 0.2, 0
UNKNOWN = "NA"  # layer of spots that nobody labelled
NEIGHBOURS = (1, 2, 4, 8, 16, 32, 64)
COMPONENTS, STARTS = 20, 20
TYPICAL = 1e4  # total to which counts are scaled before their logarithm
LENGTHSCALES = (2.0, 4.0, 8.0, 16.0, 32.0)  # of the GPs per gene, in spots
TRIED = 800  # spots on which that is chosen
SIZE = "(size)"
LATENTS, EPOCHS = 10, 30


@dataclass(frozen=True)
class Section:
    """Spots of a section.

    Attributes:
        counts: (spots, genes).  place: (spots, 2), rows and columns of the slide.  layer: (spots,) names.
    """

    counts: np.ndarray
    place: np.ndarray
    layer: np.ndarray

    @property
    def depth(self) -> np.ndarray:
        """Total count of every spot."""
        return self.counts.sum(axis=1)

    def part(self, keep: np.ndarray) -> Section:
        """Some of the spots."""
        return Section(self.counts[keep], self.place[keep], self.layer[keep])

    def table(self) -> Columns:
        """Places as the model gets them, with the depth as the size to predict for."""
        return {"x": self.place[:, 0], "y": self.place[:, 1], SIZE: self.depth}


def load(data: Path) -> Section:
    """A section from its HDF5 file."""
    with h5py.File(data / "dlpfc" / f"sample_{SECTION}.h5") as file:
        counts, place = file["X"][:].astype(np.float32), file["pos"][:].astype(float)
        layer = np.array([name.decode() for name in file["Y"][:]])
    # Visium spots lie in a hexagonal grid: neighbours in a row are two columns apart, rows 3^0.5 columns.
    return Section(counts, place * np.array([3**0.5 / 2, 0.5]), layer)


def dlpfc(data: Path) -> Task:
    """A fifth of the spots is held out; their counts are asked for at their depth, and the layers of all spots."""
    section = load(data)
    held = np.random.default_rng(SEED).random(len(section.place)) < HELD_OUT
    train, test = section.part(~held), section.part(held)
    answers = {
        "GP per gene": gp_per_gene(train, test),
        "nearest spots": nearest_spots(train, test),
        "mean": np.outer(test.depth, train.counts.sum(axis=0) / train.depth.sum()),
    }
    simple = errors_of(DEVIANCE, test.counts, answers)
    counts = Question(
        "dlpfc, held-out spots", test.table(), test.counts, simple, Target(1.0, ("GP per gene", "nearest spots"))
    )
    labelled = train.part(train.layer != UNKNOWN)
    scores = principal_components(labelled.counts)
    n_layers = len(np.unique(labelled.layer))
    simple = {"PCA and k-means": error_of(ARI, labelled.layer, clusters(scores, n_layers))}
    layers = Question(
        "dlpfc, layers", labelled.table(), labelled.layer, simple, Target(1.0, ("PCA and k-means",)),
        ask=ask_layers, kind=ARI, scored=False, published="dlpfc",
    )  # fmt: skip
    about = (
        f"DLPFC section {SECTION}, {section.counts.shape[1]} genes, {held.sum()} of {len(held)} spots held out; "
        "Poisson deviance per count at the spot's depth, and the adjusted Rand index of k-means in the latents"
    )
    return Task(
        "dlpfc", KERNEL, train.counts, train.table(), [counts, layers], about, error=DEVIANCE,
        settings={"likelihood": "negative_binomial", "inference": "global", "latent_dim": LATENTS, "epochs": EPOCHS},
        why="samples are counts; what is chosen otherwise takes longer than ten minutes on one core",
    )  # fmt: skip


def ask_layers(model: GPPVAE, question: Question) -> Answer:
    """Cluster the latents that the model expects at the places, into as many groups as there are layers."""
    latents, _ = model.predict_latent(question.table)
    return Answer(clusters(latents, len(np.unique(question.truth))), None, question.truth, "k-means of latents")


def nearest_spots(train: Section, test: Section) -> np.ndarray:
    """Rates of the nearest spots, their depths counted, at the depth of each test spot.

    The number of neighbours has the least deviance at training spots, each predicted from the others.
    """
    tree = cKDTree(train.place)
    numbers = [k for k in NEIGHBOURS if k < len(train.place)]
    others = tree.query(train.place, max(numbers) + 1)[1][:, 1:]
    rare = train.counts.sum(axis=0) / train.depth.sum()

    def rates(near: np.ndarray) -> np.ndarray:
        # One count at the mean rates, so that a gene that no neighbour has is not impossible.
        counted = sum(train.counts[column] for column in near.T) + rare
        return counted / (train.depth[near].sum(axis=1, keepdims=True) + 1.0)

    tried = {k: error_of(DEVIANCE, train.counts, train.depth[:, None] * rates(others[:, :k])) for k in numbers}
    best = min(tried, key=lambda k: tried[k])
    near = tree.query(test.place, best)[1].reshape(len(test.place), best)
    return test.depth[:, None] * rates(near)


def gp_per_gene(train: Section, test: Section) -> np.ndarray:
    """A Gaussian process of place for the rate of each gene, at the depth of each test spot.

    A spot's rate count / depth has the variance r_g / depth, so with D the depths, everything is multiplied by D^1/2:
    D^1/2 K D^1/2 + r_g I has the eigenvectors of its first term for all genes. Amplitude and noise of each gene have
    maximum likelihood; so has the length scale, over all genes, on some of the spots.
    """
    rare = train.counts.sum(axis=0) / train.depth.sum()
    scale = np.sqrt(train.depth / np.median(train.depth))[:, None]
    y = scale * (train.counts / train.depth[:, None] - rare)
    some = np.random.default_rng(SEED).permutation(len(y))[:TRIED]
    tried = {
        length: sum(nll for _, nll in _noises(*_rotated(train.place[some], scale[some], y[some], length)[::2]))
        for length in LENGTHSCALES
    }
    length = min(tried, key=lambda value: tried[value])
    s, u, v = _rotated(train.place, scale, y, length)
    ratio = np.array([found for found, _ in _noises(s, v)])
    weights = scale * (u @ (v / (s[:, None] + ratio)))
    return test.depth[:, None] * np.maximum(rare + rbf(test.place, train.place, length) @ weights, 0.01 * rare)


def _rotated(
    place: np.ndarray, scale: np.ndarray, y: np.ndarray, length: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Eigenvalues and eigenvectors of D^1/2 K D^1/2, and the values in that basis."""
    s, u = np.linalg.eigh(scale * rbf(place, place, length) * scale.T)
    return np.maximum(s, 0.0), u, u.T @ y


def _noises(s: np.ndarray, v: np.ndarray) -> list[tuple[float, float]]:
    """Noise over amplitude that has maximum likelihood, per gene, and the negative log-likelihood there."""
    found = []
    for column in v.T:

        def nll(log_r: float, column: np.ndarray = column) -> float:
            d = s + np.exp(log_r)
            return float(0.5 * len(s) * np.log((column**2 / d).mean()) + 0.5 * np.log(d).sum())

        best = minimize_scalar(nll, bounds=(np.log(1e-2), np.log(1e6)), method="bounded", options={"xatol": 0.05})
        found.append((float(np.exp(best.x)), float(best.fun)))
    return found


def principal_components(counts: np.ndarray) -> np.ndarray:
    """Scores of the first components of log(1 + counts at a typical total), (spots, 20)."""
    logs = np.log1p(TYPICAL * counts / counts.sum(axis=1, keepdims=True))
    u, s, _ = np.linalg.svd(logs - logs.mean(axis=0), full_matrices=False)
    return u[:, :COMPONENTS] * s[:COMPONENTS]


def clusters(points: np.ndarray, n: int) -> np.ndarray:
    """Labels by k-means, the best of several starts."""
    best, labels = np.inf, np.zeros(len(points), dtype=np.int64)
    for seed in range(STARTS):
        centres, found = kmeans2(points, n, iter=100, minit="++", seed=seed)
        spread = float(np.square(points - centres[found]).sum())
        if spread < best:
            best, labels = spread, found
    return labels
