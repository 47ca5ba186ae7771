"""Policy optimisation over model-generated tokens: pure functions of tensors."""
