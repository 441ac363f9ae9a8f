"""Names of the files in a run folder."""

CONFIG, METRICS, CHECKPOINT, MODEL = "config.json", "metrics.jsonl", "checkpoint.safetensors", "model.safetensors"
