"""Time per frame of the live page, beside the decoder's own forward pass, for pictures of 64 x 64.

    python benchmarks/explore.py [--quick] [--threads 1]

A frame is what a moving slider asks for: prediction and standard deviation over 8 draws, from the question over HTTP on
this machine to the packed numbers. The model has the default network; its weights do not matter for the time. Writes
results/explore.json; --quick writes into build/quick only.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import threading
import time
from typing import Any

import gppvae  # noqa: F401  # isort: skip  # before PyTorch, so that threads wait as they do for users
import numpy as np
import torch
from _common import interleave, save, thread_counts

from gppvae import GPPVAE
from gppvae.explore.answers import Answers
from gppvae.explore.server import LiveServer
from gppvae.explore.sources import Source
from gppvae.explore.wire import unpack

KERNEL = "Learned(object, 16) * Periodic(angle, 360)"
OBJECTS, ANGLES, SIZE = 20, 16, 64
MOST = 0.1  # seconds per frame
QUICK, SETTLED = 8, 32  # draws of a frame while the slider moves, and once it rests


def make_model(seed: int) -> GPPVAE:
    """Fitted for one epoch, to random pictures: a model of the right size."""
    generator = np.random.default_rng(seed)
    table = {
        "object": np.repeat(np.arange(OBJECTS), ANGLES),
        "angle": np.tile(np.arange(ANGLES) * 360.0 / ANGLES, OBJECTS),
    }
    pictures = generator.random((OBJECTS * ANGLES, SIZE, SIZE), dtype=np.float32)
    model = GPPVAE(KERNEL, epochs=1, warmup_epochs=1, gp_epochs=1, seed=seed)
    return model.fit(pictures, table, progress=False)


def measure(model: GPPVAE, threads: int, rounds: int) -> dict[str, Any]:
    """Times of frames over HTTP, of the same without HTTP, and of the decoder alone."""
    torch.set_num_threads(threads)
    answers = Answers(model, Source(), "benchmark", "benchmark")
    server = LiveServer(answers)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    angles = itertools.count()

    def question(draws: int) -> dict[str, Any]:
        return {"row": {"object": "3", "angle": next(angles) * 1.7 % 360}, "draws": draws}

    def frame(draws: int) -> None:
        body = json.dumps(question(draws))
        connection.request("POST", f"/{server.token}/ask/frame", body, {"Content-Type": "application/json"})
        found = unpack(connection.getresponse().read())[1]
        assert found["std"].shape == (1, SIZE, SIZE)

    decoder, latents = model.model_.autoencoder.decoder, model.prior_.n_latents

    def decode(n: int) -> None:
        with torch.no_grad():
            decoder(torch.zeros(n, latents))

    candidates = {
        "frame": lambda: frame(QUICK),
        "frame at rest": lambda: frame(SETTLED),
        "without HTTP": lambda: answers.frame(question(QUICK)),
        "decoder, same pictures": lambda: decode(1 + QUICK),
        "decoder, one picture": lambda: decode(1),
    }
    times = interleave(candidates, rounds, warm_up=3)
    connection.close()
    server.stop()
    thread.join()
    seconds = times["frame"].seconds
    return {
        "threads": threads,
        "times": {name: timing.record() for name, timing in times.items()},
        "ratio_to_decoder": times["frame"].ratio_to(times["decoder, same pictures"]),
        "most_seconds": MOST,
        "quick_enough": seconds <= MOST,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="5 frames of each kind instead of 100")
    parser.add_argument("--threads", type=int, help="default: torch's own number, and one")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    started, model = time.perf_counter(), make_model(args.seed)
    cases = []
    for threads in thread_counts(args.threads):
        case = measure(model, threads, 5 if args.quick else 100)
        cases.append(case)
        print(f"\n{threads} thread(s)")
        for name, record in case["times"].items():
            print(f"  {name:<24}{1000 * record['seconds']:8.1f} ms  (slowest {1000 * record['slowest']:.1f})")
        print(f"  a frame takes {case['ratio_to_decoder']:.2f} times the decoder's pass over the same pictures")
    trained = model.resolved_
    setting = {"kernel": KERNEL, "image": [SIZE, SIZE], "network": trained["network"], "width": trained["width"],
               "latents": model.prior_.n_latents, "draws": QUICK, "draws_at_rest": SETTLED}  # fmt: skip
    print(f"\nwritten to {save('explore', {'setting': setting, 'cases': cases}, args.seed, started, args.quick)}")


if __name__ == "__main__":
    main()
