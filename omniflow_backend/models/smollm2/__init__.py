"""SmolLM2-135M-Instruct: a small chat model that runs on one CPU core."""
