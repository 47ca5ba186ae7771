"""Policy optimisation over model-generated tokens: pure functions of tensors.

`settings` (no torch) turns a configuration into a `Recipe`; `method.policy_loss` applies it; `aggregation`
makes one number; `advantages` turns rewards into advantages; `diagnostics.summarise` explains the step.
"""
