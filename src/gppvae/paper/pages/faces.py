"""What the page of the face experiment says."""

from __future__ import annotations

from gppvae.paper.pages.comparison import Words

WORDS = Words(
    title="Faces",
    about="{objects} heads in nine poses; poses in which a head was not seen are predicted ({name}).",
    objects="people",
    views="poses",
    figures={
        "errors": ("figure_3a_mse", "Figure 3a"),
        "predictions": ("figure_3b_predictions", "Figure 3b"),
        "covariances": ("figure_3cd_covariances", "Figures 3c and 3d"),
        "shared": ("figure_s3b_vae_bound", "Figure S3b"),
        "cvae": ("figure_s5a_cvae", "Figure S5a"),
        "livae": ("figure_s5b_livae", "Figure S5b"),
        "opt": ("figure_s5cd_mse", "Figure S5c and S5d"),
        "means": ("figure_means", "Encoder means"),
        "log_variances": ("figure_log_variances", "Encoder log-variances"),
    },
    paper_mse={"joint": 0.0281, "dis": 0.0298},
    paper_error={"joint": 0.0008, "dis": 0.0008},
)
