"""`gppvae fit` under torchrun, with something else in the second process. Arguments: what differs, folder."""

import os
import sys

import numpy as np

from gppvae.cli import main
from tiny import KERNEL, spots

what, folder = sys.argv[1:]
second = os.environ["RANK"] == "1"
images, table = spots(4, 5)
if second and what == "samples":
    images = images.copy()
    images[7, 3, 3] += 0.25
if second and what == "table":
    table = table.assign(angle=table["angle"] + 1.0)
place = f"{folder}/{os.environ['RANK']}"
os.makedirs(place, exist_ok=True)
np.save(f"{place}/y.npy", images)
table.to_csv(f"{place}/t.csv", index=False)
seed, rate = ("5" if second and what == "seed" else "4"), ("0.01" if second and what == "settings" else "0.001")
sys.argv = ["gppvae", "fit", f"{place}/t.csv", "--data", f"{place}/y.npy", "--kernel", KERNEL, "--out", f"{folder}/run"]
sys.argv += ["--latent-dim", "2", "--network", "mlp", "--width", "4", "--epochs", "2", "--warmup-epochs", "1"]
sys.argv += ["--gp-epochs", "1", "--quiet", "--no-report", "--seed", seed, "--lr", rate]
main()
