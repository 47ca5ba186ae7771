"""Where metrics are shown while a run goes on. `metrics.jsonl` in the run's folder is written whatever is chosen here.

Each tracker is one small class over a package of its own, imported when a run asks for it. All but TensorBoard belong
to the extra `trackers`. They work without a network: W&B in offline mode, trackio and MLflow in a local store.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import yaml

from agent_rl.config import ConfigError
from agent_rl.training.settings import TrackerSettings

MLFLOW_BATCH, MLFLOW_LONGEST = 100, 6000
"""Parameters of one request, and characters of one value, that MLflow takes."""


class Tracker(Protocol):
    """Takes scalars by step."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record the values of one step."""
        ...

    def close(self) -> None:
        """Flush and end."""
        ...


class TensorBoardTracker:
    """TensorBoard event files under `folder`."""

    def __init__(self, folder: Path, *, purge_step: int | None = None):
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=purge_step)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WandbTracker:
    """Weights & Biases. Offline runs lie under the run's folder and go up with `wandb sync`."""

    def __init__(self, settings: TrackerSettings, run: Path, config: Mapping[str, Any]):
        wandb = _package("wandb")
        self._run = wandb.init(
            project=settings.project,
            name=run.name,
            id=_identifier(run),
            resume="allow" if settings.wandb_mode == "online" else None,
            mode=settings.wandb_mode,
            dir=str(run),
            config=dict(config),
            settings=wandb.Settings(silent=True, console="off"),
        )
        # Steps are an axis of their own: a resumed run may log a step that was logged before it died.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({**values, "step": step})

    def close(self) -> None:
        self._run.finish()


class TrackioTracker:
    """trackio, which keeps its runs in a local database (environment variable `TRACKIO_DIR`)."""

    def __init__(self, settings: TrackerSettings, run: Path, config: Mapping[str, Any]):
        trackio = _package("trackio")
        self._run = trackio.init(
            project=settings.project,
            name=run.name,
            config=dict(config),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class MlflowTracker:
    """MLflow, in a local store of the run's folder unless `mlflow_uri` names a server."""

    def __init__(self, settings: TrackerSettings, run: Path, config: Mapping[str, Any]):
        mlflow = _package("mlflow")
        uri = settings.mlflow_uri or _local_store(run)
        self._client = mlflow.MlflowClient(tracking_uri=uri)
        found = self._client.get_experiment_by_name(settings.project)
        experiment = found.experiment_id if found else self._client.create_experiment(settings.project)
        self._id = self._run_of(experiment, run)
        self._metric = mlflow.entities.Metric
        parameters = [mlflow.entities.Param(name, str(value)[:MLFLOW_LONGEST]) for name, value in _flat(config)]
        for start in range(0, len(parameters), MLFLOW_BATCH):
            self._client.log_batch(self._id, params=parameters[start : start + MLFLOW_BATCH])

    def _run_of(self, experiment: str, run: Path) -> str:
        """The run that this folder logged to before, else a new one."""
        kept = run / "mlflow-run-id"
        if kept.is_file():
            return kept.read_text().strip()
        created = self._client.create_run(experiment, run_name=run.name).info.run_id
        kept.write_text(created)
        return created

    def log(self, step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        # Its stores refuse what is not finite; metrics.jsonl has it.
        finite = [self._metric(name, float(v), now, step) for name, v in values.items() if math.isfinite(v)]
        self._client.log_batch(self._id, metrics=finite)

    def close(self) -> None:
        self._client.set_terminated(self._id)


def trackers(settings: TrackerSettings, run: Path, *, resumed_after: int | None) -> list[Tracker]:
    """The trackers that the settings ask for.

    Raises:
        ConfigError: a package is not installed; the message names the extra.
    """
    config = _run_config(run)
    makers: dict[str, Callable[[TrackerSettings, Path, Mapping[str, Any]], Tracker]] = {
        "wandb": WandbTracker,
        "trackio": TrackioTracker,
        "mlflow": MlflowTracker,
    }
    found: list[Tracker] = []
    try:
        if settings.tensorboard:
            purge = None if resumed_after is None else resumed_after + 1
            found.append(TensorBoardTracker(run / "tensorboard", purge_step=purge))
        for name, make in makers.items():
            if getattr(settings, name):
                found.append(make(settings, run, config))
    except BaseException:
        for tracker in found:
            tracker.close()
        raise
    return found


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"trackers.{name} = true needs the package {name} ({error}): pip install 'agent-rl[trackers]', or set "
            f"trackers.{name} = false"
        ) from None


def _run_config(run: Path) -> dict[str, Any]:
    """The run's resolved configuration, shown beside its curves."""
    file = run / "config.yaml"
    return (yaml.safe_load(file.read_text(encoding="utf-8")) or {}) if file.is_file() else {}


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Dotted keys and their values."""
    found: list[tuple[str, Any]] = []
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            found += _flat(value, f"{prefix}{key}.")
        else:
            found.append((f"{prefix}{key}", value))
    return found


def _identifier(run: Path) -> str:
    """Equal for the same folder, so that a resumed run goes on in the same curve."""
    return hashlib.blake2b(str(run.resolve()).encode(), digest_size=8).hexdigest()


def _local_store(run: Path) -> str:
    """A database in the run's folder; plain files where SQL is absent (mlflow-skinny), which MLflow wants allowed."""
    if importlib.util.find_spec("sqlalchemy") is not None:
        return f"sqlite:///{(run / 'mlflow.db').resolve()}"
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    return (run / "mlruns").resolve().as_uri()
