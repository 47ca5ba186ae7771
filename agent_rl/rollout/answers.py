"""Which parts of a trajectory count as its final answer: the rules of `rewards`, as the episode asks for them."""

from __future__ import annotations

from agent_rl.rewards.extraction import answer_from_code, extract_answer
from agent_rl.rewards.settings import RewardSettings


class ExtractionRules:
    """`AnswerRules` over the extraction modes of the reward settings."""

    def __init__(self, settings: RewardSettings):
        self._modes = settings.extraction

    def from_prose(self, text: str) -> str | None:
        """The answer in text outside code blocks."""
        found = extract_answer(text, modes=self._modes, skip_fenced=False)
        return None if found is None else found.answer

    def from_code(self, code: str) -> str | None:
        """The literal handed to `final_answer` by the model's own program."""
        return answer_from_code(code)
