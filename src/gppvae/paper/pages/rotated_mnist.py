"""What the page of the rotated-MNIST experiment says."""

from __future__ import annotations

from gppvae.paper.pages.comparison import Words

WORDS = Words(
    title="Rotated MNIST",
    about="Handwritten threes predicted at {held_out_angle:g} degrees, where none was seen.",
    objects="digits",
    views="angles",
    figures={
        "errors": ("figure_2a_mse", "Figure 2a"),
        "means": ("figure_2b_means", "Figure 2b"),
        "log_variances": ("figure_2c_log_variances", "Figure 2c"),
        "predictions": ("figure_2d_predictions", "Figure 2d"),
        "covariances": ("figure_2ef_covariances", "Figures 2e and 2f"),
        "shared": ("figure_s3_vae_bound", "Figure S3"),
        "cvae": ("figure_s4a_cvae", "Figure S4a"),
        "livae": ("figure_s4b_livae", "Figure S4b"),
        "opt": ("figure_s4cd_mse", "Figure S4c and S4d"),
    },
    paper_mse={"joint": 0.0280, "dis": 0.0306},
    paper_error={"joint": 0.0008, "dis": 0.0009},
)
