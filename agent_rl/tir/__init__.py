"""Tool-integrated reasoning: prompt formats, the fence parser, observations, the episode."""
