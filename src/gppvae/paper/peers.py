"""What other systems report on the tasks of this field; every number has its source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Peer:
    """One number of another system.

    Attributes:
        task: what is predicted; docs/peers.md describes each.  method: as its authors call it.
        value: as printed there.  source: of the number.  url: of the source.  note: what differs in the protocol.
    """

    task: str
    method: str
    value: str
    source: str
    url: str
    note: str = ""


_PAPER = ("Casale et al. 2018", "https://arxiv.org/abs/1810.11738")
_ODE2VAE = ("Yildiz et al. 2019", "https://arxiv.org/abs/1905.10994")
_SHOOTING = ("Vialard et al. 2020", "https://arxiv.org/abs/2006.10330")
_INIMNET = ("Corbett and Kangin 2022", "https://github.com/andrw3000/inimnet")
_LVAE = ("poster in the repository of Ramchandran et al. 2021", "https://github.com/SidRama/Longitudinal-VAE")
_TSI = ("TSI-Bench", "https://github.com/WenjieDu/Awesome_Imputation")
_COIL = ("repository of gppvae-minh, 2026", "https://github.com/minhNgnn/gppvae-minh")
_SPAVAE = ("notebook on section 151673 of spaVAE", "https://github.com/ttgump/spaVAE")
_LMMVAE = ("repository of LMM-VAE", "https://github.com/gsimchoni/lmmvae")
_OWN_SPLIT = "a split of its own"

PEERS = (
    Peer("rotated-mnist", "GPPVAE-joint, the paper", "0.0280 ± 0.0008", *_PAPER, _OWN_SPLIT),
    Peer("rotated-mnist", "GPPVAE-dis, the paper", "0.0306 ± 0.0009", *_PAPER, _OWN_SPLIT),
    Peer("rotated-mnist", "ODE2VAE", "0.0194 ± 0.00006", *_ODE2VAE, _OWN_SPLIT),
    Peer("rotated-mnist", "ODE2VAE-KL", "0.0184 ± 0.0003", *_ODE2VAE, _OWN_SPLIT),
    Peer("rotated-mnist", "shooting formulation", "0.0122 ± 0.0064", *_SHOOTING, "that of ODE2VAE"),
    Peer("rotated-mnist", "InImNet", "0.0125 ± 0.0003", *_INIMNET, "that of ODE2VAE"),
    Peer("health-mnist", "GP-VAE", "0.059", *_LVAE),
    Peer("health-mnist", "GPPVAE", "0.057", *_LVAE, "their run of it"),
    Peer("health-mnist", "GRUI-GAN", "0.053", *_LVAE),
    Peer("health-mnist", "VRNN", "0.049", *_LVAE),
    Peer("health-mnist", "BRITS", "0.047", *_LVAE),
    Peer("health-mnist", "L-VAE, 8 latents", "0.038", *_LVAE),
    Peer("health-mnist", "L-VAE, 16 latents", "0.033", *_LVAE),
    Peer("health-mnist", "L-VAE, 32 latents", "0.025", *_LVAE),
    Peer("etth1", "GP-VAE of PyPOTS", "0.3285", *_TSI),
    Peer("etth1", "linear interpolation", "0.197", *_TSI),
    Peer("etth1", "SAITS", "0.144", *_TSI),
    Peer("physionet2012", "GP-VAE of PyPOTS", "0.4450", *_TSI),
    Peer("physionet2012", "linear interpolation", "0.366", *_TSI),
    Peer("physionet2012", "SAITS", "0.257", *_TSI),
    Peer("coil100", "gppvae-minh, 1,200 epochs", "0.013845", *_COIL),
    Peer("dlpfc", "spaVAE", "0.554", *_SPAVAE),
    Peer("lmmvae", "SVGP-VAE", "3.74", *_LMMVAE, "their run of it"),
    Peer("lmmvae", "LMM-VAE", "1.63", *_LMMVAE),
)


def best(task: str) -> Peer:
    """The peer with the least number; the paper's own rows are not peers."""
    others = [peer for peer in PEERS if peer.task == task and peer.source != _PAPER[0]]
    return min(others, key=lambda peer: float(peer.value.split(" ")[0]))
