"""Deployment files agree with the settings, with each other, and with what a hardened container is."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent_rl.cluster.resources import Node, placement, shortages
from agent_rl.config import load
from agent_rl.training.settings import RunConfig
from sandbox.settings import ServiceSettings

TOP = Path(__file__).resolve().parents[2]
DEPLOY = TOP / "deploy"
BASE = DEPLOY / "kubernetes" / "base"
OVERLAYS = sorted(path for path in (DEPLOY / "kubernetes" / "overlays").iterdir() if path.is_dir())
COMPOSE = sorted(DEPLOY.glob("compose*.yaml"))
KUBERNETES_VERSION = "1.33"
USER = 10001
MIB = {"Mi": 1, "Gi": 1024, "m": 1, "g": 1024}


def documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def built(folder: Path) -> list[dict[str, Any]]:
    """What kustomize would make of a folder, as far as these files use it: resources, merged with patches by name."""
    kustomization = documents(folder / "kustomization.yaml")[0]
    found: list[dict[str, Any]] = []
    for name in kustomization["resources"]:
        path = folder / name
        found += built(path.resolve()) if path.is_dir() else documents(path)
    for patch in kustomization.get("patches", []):
        for change in documents(folder / patch["path"]):
            targets = [r for r in found if (r["kind"], r["metadata"]["name"]) == _identity(change)]
            assert len(targets) == 1, f"{folder.name}: the patch of {_identity(change)} meets {len(targets)} resources"
            found[found.index(targets[0])] = merged(targets[0], change)
    return found


def merged(into: Any, change: Any) -> Any:
    """Strategic merge: mappings by key, lists of named things by name, other values replaced."""
    if isinstance(into, dict) and isinstance(change, dict):
        return into | {key: merged(into.get(key), value) for key, value in change.items()}
    if isinstance(into, list) and isinstance(change, list) and all("name" in item for item in (*into, *change)):
        by_name = {item["name"]: item for item in into}
        for item in change:
            by_name[item["name"]] = merged(by_name.get(item["name"]), item)
        return list(by_name.values())
    return change


def _identity(resource: dict[str, Any]) -> tuple[str, str]:
    return resource["kind"], resource["metadata"]["name"]


def only(resources: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    found = [resource for resource in resources if resource["kind"] == kind]
    assert len(found) == 1, f"{len(found)} resources of kind {kind}"
    return found[0]


def pods(resource: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every pod template of a resource."""
    if resource["kind"] in ("Deployment", "Job"):
        yield resource["spec"]["template"]
    elif resource["kind"] == "RayJob":
        cluster = resource["spec"]["rayClusterSpec"]
        yield cluster["headGroupSpec"]["template"]
        yield from (group["template"] for group in cluster["workerGroupSpecs"])
        yield resource["spec"]["submitterPodTemplate"]


def mib(amount: str) -> float:
    number, unit = re.fullmatch(r"([0-9.]+)([A-Za-z]+)", amount).groups()  # type: ignore[union-attr]
    return float(number) * MIB[unit]


def option(arguments: list[str], name: str) -> str | None:
    return arguments[arguments.index(name) + 1] if name in arguments else None


ALL_RESOURCES = {
    "base": built(BASE),
    **{f"overlay {folder.name}": built(folder) for folder in OVERLAYS},
    "trainer job": documents(DEPLOY / "kubernetes" / "trainer-job.yaml"),
    "RayJob": documents(DEPLOY / "ray" / "rayjob.yaml"),
}
PODS = [
    pytest.param(pod, id=f"{where}-{_identity(resource)[1]}-{number}")
    for where, resources in ALL_RESOURCES.items()
    for resource in resources
    for number, pod in enumerate(pods(resource))
]


@pytest.mark.parametrize("where", ALL_RESOURCES)
def test_resources_fit_the_schemas_of_kubernetes(where: str) -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    own = [resource for resource in ALL_RESOURCES[where] if resource["apiVersion"] != "ray.io/v1"]
    assert own
    for resource in own:
        schemas.validate(resource, KUBERNETES_VERSION, strict=True)
    for resource in ALL_RESOURCES[where]:
        for pod in pods(resource):
            whole = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "pod"} | pod["metadata"],
                "spec": pod["spec"],
            }
            schemas.validate(whole, KUBERNETES_VERSION, strict=True)


@pytest.mark.parametrize("pod", PODS)
def test_every_pod_is_confined_and_bounded(pod: dict[str, Any]) -> None:
    spec = pod["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == USER
    assert spec["securityContext"]["seccompProfile"]["type"] in ("RuntimeDefault", "Localhost")
    assert not any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC"))
    assert not any("hostPath" in volume for volume in spec["volumes"])
    volumes = {volume["name"] for volume in spec["volumes"]}
    for container in spec["containers"]:
        confined = container["securityContext"]
        assert confined["readOnlyRootFilesystem"] is True
        assert confined["allowPrivilegeEscalation"] is False
        assert confined["capabilities"] == {"drop": ["ALL"]}
        assert not confined.get("privileged")
        assert {"cpu", "memory"} <= set(container["resources"]["limits"])
        assert {"cpu", "memory"} <= set(container["resources"]["requests"])
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        assert "/tmp" in {mount["mountPath"] for mount in container["volumeMounts"]}
        assert not container["image"].endswith(":latest")


@pytest.mark.parametrize("where", ["base", *(f"overlay {folder.name}" for folder in OVERLAYS)])
def test_selectors_labels_ports_and_probes_of_the_sandbox_agree(where: str) -> None:
    resources = ALL_RESOURCES[where]
    deployment, service = only(resources, "Deployment"), only(resources, "Service")
    pod = deployment["spec"]["template"]
    labels, (container,) = pod["metadata"]["labels"], pod["spec"]["containers"]
    selectors = [
        deployment["spec"]["selector"]["matchLabels"],
        service["spec"]["selector"],
        only(resources, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        *(spread["labelSelector"]["matchLabels"] for spread in pod["spec"]["topologySpreadConstraints"]),
    ]
    assert all(selector.items() <= labels.items() for selector in selectors)
    target = only(resources, "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == _identity(deployment)
    assert "replicas" not in deployment["spec"]  # else every `apply` undoes the autoscaler's choice
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": ServiceSettings.model_fields["port"].default}
    assert [(port["port"], port["targetPort"]) for port in service["spec"]["ports"]] == [(ports["http"], "http")]
    paths = {name: container[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert paths == {"startupProbe": "/readyz", "readinessProbe": "/readyz", "livenessProbe": "/healthz"}
    assert {resource["metadata"].get("namespace", "agent-rl") for resource in resources} == {"agent-rl"}


@pytest.mark.parametrize("where", ["base", *(f"overlay {folder.name}" for folder in OVERLAYS)])
def test_the_services_settings_load_and_fit_the_pod(where: str) -> None:
    resources = ALL_RESOURCES[where]
    pod = only(resources, "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    arguments = container["args"]
    assert arguments[0] == "serve"
    config, token = option(arguments, "--config"), option(arguments, "--token-file")
    text = only(resources, "ConfigMap")["data"][str(Path(config or "").relative_to(mounts["settings"]))]
    assert token is not None and token.startswith(mounts["token"])
    given = {"min_tier": option(arguments, "--min-tier"), "backend": option(arguments, "--backend")}
    values = yaml.safe_load(text) | {key: value for key, value in given.items() if value}
    settings = ServiceSettings.model_validate(values | {"tokens": ["0123456789abcdef"]})
    limits = container["resources"]["limits"]
    _fits(settings, cpus=float(limits["cpu"]), memory_mb=mib(limits["memory"]))
    longest = settings.drain_s + settings.host_grace_s
    assert pod["terminationGracePeriodSeconds"] > longest


def _fits(settings: ServiceSettings, *, cpus: float, memory_mb: float) -> None:
    """Named in full, since a container sees all of its machine's cores; and what they hold fits into the memory."""
    assert settings.slots is not None and settings.slots <= cpus
    assert settings.max_sessions is not None
    needed = 300 + settings.slots * (200 + settings.max_limits.memory_mb)
    assert needed + settings.max_sessions * settings.session_memory_mb <= memory_mb
    assert settings.max_limits.wall_s >= RunConfig.model_fields["tir"].default.tool.wall_s


def test_policies_close_the_sandbox_to_all_but_trainers() -> None:
    policies = {r["metadata"]["name"]: r["spec"] for r in ALL_RESOURCES["base"] if r["kind"] == "NetworkPolicy"}
    assert policies["nothing"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    deployment = only(ALL_RESOURCES["base"], "Deployment")
    sandbox = policies["sandbox"]
    assert sandbox["podSelector"]["matchLabels"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    assert sandbox["egress"] == [] and set(sandbox["policyTypes"]) == {"Ingress", "Egress"}
    ((entry,), (port,)) = sandbox["ingress"][0]["from"], sandbox["ingress"][0]["ports"]
    assert port["port"] == ServiceSettings.model_fields["port"].default
    trainers = entry["podSelector"]["matchLabels"]
    assert trainers == policies["trainer"]["podSelector"]["matchLabels"]
    for where in ("trainer job", "RayJob"):
        for pod in (pod for resource in ALL_RESOURCES[where] for pod in pods(resource)):
            assert trainers.items() <= pod["metadata"]["labels"].items()
    blocked = [rule["to"][0]["ipBlock"] for rule in policies["trainer"]["egress"] if "ipBlock" in rule["to"][0]]
    assert all("169.254.0.0/16" in block["except"] for block in blocked)


def test_the_gvisor_overlay_names_its_runtime() -> None:
    resources = ALL_RESOURCES["overlay gvisor"]
    runtime = only(resources, "RuntimeClass")
    assert runtime["handler"] == "runsc"
    assert only(resources, "Deployment")["spec"]["template"]["spec"]["runtimeClassName"] == runtime["metadata"]["name"]


def test_the_job_trains_against_the_service() -> None:
    service = only(ALL_RESOURCES["base"], "Service")
    (container,) = only(ALL_RESOURCES["trainer job"], "Job")["spec"]["template"]["spec"]["containers"]
    command, config, *overrides = container["args"]
    settings = load(TOP / config, overrides, model=RunConfig)
    assert command == "train"
    assert settings.sandbox.url == f"http://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"


def test_the_ray_job_asks_for_what_its_pods_have() -> None:
    spec = only(ALL_RESOURCES["RayJob"], "RayJob")["spec"]
    program, command, config, *overrides = spec["entrypoint"].split()
    settings = load(TOP / config, overrides, model=RunConfig)
    assert (program, command, settings.cluster.kind) == ("agent-rl", "train", "ray")
    assert settings.cluster.sandbox_urls == ["http://sandbox:8080"]
    (group,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    free = {"CPU": float(limits["cpu"]), "GPU": float(limits["nvidia.com/gpu"])}
    nodes = [Node(f"worker {number}", free) for number in range(group["replicas"])]
    assert shortages(placement(settings.cluster), nodes) == []
    fewer = nodes[:-1]
    assert shortages(placement(settings.cluster), fewer), "the pods are more than the run needs"
    names = {
        e["name"]
        for pod in pods(only(ALL_RESOURCES["RayJob"], "RayJob"))
        for e in pod["spec"]["containers"][0].get("env", [])
    }
    assert settings.sandbox.token_env in names


def test_the_plain_cluster_file_fits_rays_schema() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    ray = pytest.importorskip("ray", reason="ray is not installed")
    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
    (cluster,) = documents(DEPLOY / "ray" / "cluster.yaml")
    jsonschema.validate(cluster, schema)
    assert cluster["max_workers"] == len(cluster["provider"]["worker_ips"])


def test_the_plain_cluster_file_trains_with_keys_that_exist() -> None:
    comments = "\n".join(line.removeprefix("#").strip() for line in _head_comment(DEPLOY / "ray" / "cluster.yaml"))
    (line,) = re.findall(r"agent-rl train (.*?)'", comments.replace("\\\n", " "), flags=re.S)
    config, *overrides = line.split()
    settings = load(TOP / config, overrides, model=RunConfig)
    (cluster,) = documents(DEPLOY / "ray" / "cluster.yaml")
    machines = [cluster["provider"]["head_ip"], *cluster["provider"]["worker_ips"]]
    assert settings.cluster.sandbox_urls == [f"http://{machine}:8080" for machine in machines]
    assert settings.cluster.address == "auto"


def _head_comment(path: Path) -> list[str]:
    lines = path.read_text().splitlines()
    return lines[: next(number for number, line in enumerate(lines) if not line.startswith("#"))]


@pytest.mark.parametrize(
    "script",
    ["ray/train.sbatch", "offline.sh", "runner/build.sh", "trainer/entrypoint.sh"],
)
def test_scripts_parse(script: str) -> None:
    subprocess.run(["bash", "-n", str(DEPLOY / script)], check=True)
    if shutil.which("shellcheck"):
        found = subprocess.run(["shellcheck", str(DEPLOY / script)], capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stdout


def test_the_page_names_files_that_exist() -> None:
    text = (TOP / "docs" / "deployment.md").read_text()
    paths = set(re.findall(r"\b(?:deploy|configs|tests|benchmarks)/[\w./-]*\w", text))
    assert len(paths) > 15
    made_by_the_reader = {"deploy/secrets/sandbox_token"}
    assert [path for path in sorted(paths - made_by_the_reader) if not (TOP / path).exists()] == []


@pytest.mark.parametrize("gpus", [0, 8])
def test_the_slurm_script_brings_up_every_node_and_trains_with_keys_that_exist(tmp_path: Path, gpus: int) -> None:
    """The script itself, with SLURM's commands and Ray replaced by ones that write down how they were called."""
    calls, token = tmp_path / "calls", "0123456789abcdef0123"
    commands = {
        "scontrol": "echo node1; echo node2",
        "srun": f'case "$*" in *hostname*) echo 192.0.2.1 ;; *) echo "$@" >>{calls} ;; esac',
        "venv/bin/python": f'case "$*" in *token*) echo {token} ;; *) cat >/dev/null ;; esac',
        "venv/bin/agent-rl": f'printf "%s\\n" "$@" >{tmp_path}/run; test "$AGENT_RL_SANDBOX_TOKEN" = {token}',
    }
    for name, text in commands.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_CPUS_ON_NODE": "16",
        "SLURM_GPUS_ON_NODE": str(gpus),
        "AGENT_RL_VENV": str(tmp_path / "venv"),
    }
    script = [str(DEPLOY / "ray" / "train.sbatch"), str(TOP / "configs" / "quickstart.yaml"), "steps=3"]
    subprocess.run(["bash", *script], check=True, cwd=tmp_path, env=environment, timeout=60)
    _, config, *overrides = (tmp_path / "run").read_text().splitlines()
    settings = load(config, overrides, model=RunConfig)
    assert settings.steps == 3
    assert settings.cluster.sandbox_urls == ["http://node1:8080", "http://node2:8080"]
    free = {"CPU": 16.0, "GPU": float(gpus)}
    assert shortages(placement(settings.cluster), [Node("node1", free), Node("node2", free)]) == []
    started = calls.read_text()
    assert started.count("sandbox serve") == 2 and started.count("ray start") == 2
    assert not list(tmp_path.glob(".agent-rl-*")), "the token outlived the job"


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.name)
def test_compose_files_and_their_service_settings(path: Path) -> None:
    (compose,) = documents(path)
    base = documents(DEPLOY / "compose.yaml")[0]["services"]
    assert set(compose["services"]) <= set(base)
    for name, service in compose["services"].items():
        whole = merged(base[name], service)
        assert whole["read_only"] is True and whole["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in whole["security_opt"]
        assert whole["user"] == f"{USER}:{USER}"
        assert not whole.get("privileged") and "ports" not in whole
        assert all(key in whole for key in ("cpus", "mem_limit", "memswap_limit", "pids_limit", "tmpfs"))
    arguments = compose["services"].get("sandbox", {}).get("command") or _default_arguments("service")
    given = {"min_tier": option(arguments, "--min-tier"), "backend": option(arguments, "--backend")}
    values = yaml.safe_load((DEPLOY / "service" / "service.yaml").read_text())
    values |= {key: value for key, value in given.items() if value}
    settings = ServiceSettings.model_validate(values | {"tokens": ["0123456789abcdef"]})
    _fits(settings, cpus=base["sandbox"]["cpus"], memory_mb=mib(base["sandbox"]["mem_limit"]))
    assert f":{settings.port}/readyz" in " ".join(base["sandbox"]["healthcheck"]["test"])


def test_compose_trains_against_its_service_after_it_is_healthy() -> None:
    (compose,) = documents(DEPLOY / "compose.yaml")
    sandbox, trainer = compose["services"]["sandbox"], compose["services"]["trainer"]
    _, config, *overrides = trainer["command"]
    settings = load(TOP / config, overrides, model=RunConfig)
    assert settings.sandbox.url == f"http://sandbox:{ServiceSettings.model_fields['port'].default}"
    assert trainer["depends_on"] == {"sandbox": {"condition": "service_healthy"}}
    assert sandbox["networks"] == ["programs"] and compose["networks"]["programs"]["internal"] is True
    secret = f"/run/secrets/{sandbox['secrets'][0]}"
    assert option(_default_arguments("service"), "--token-file") == secret
    assert trainer["environment"]["AGENT_RL_SANDBOX_TOKEN_FILE"] == secret


def _default_arguments(image: str) -> list[str]:
    text = (DEPLOY / image / "Dockerfile").read_text()
    return json.loads(re.findall(r"^CMD (\[.*\])$", text, flags=re.M)[-1])


@pytest.mark.parametrize("image", ["service", "trainer", "runner"])
def test_images_have_a_pinned_base_an_ordinary_user_and_pinned_packages(image: str) -> None:
    text = (DEPLOY / image / "Dockerfile").read_text()
    (base,) = re.findall(r"^ARG BASE=(\S+)", text, flags=re.M)
    assert re.search(r":\d+\.\d+\.\d+-|@sha256:", base), f"{base} names no exact version"
    user = re.findall(r"^USER (\d+):(\d+)$", text, flags=re.M)
    assert user and all(number != "0" for number in user[-1])
    assert not re.search(r"https?://", re.sub(r"^#.*|http://127\.0\.0\.1\S*", "", text, flags=re.M))


def test_the_services_packages_are_pinned() -> None:
    pinned = {
        _normal(line.split("==")[0]) for line in (TOP / "constraints.txt").read_text().splitlines() if "==" in line
    }
    wanted = [_normal(line) for line in (DEPLOY / "service" / "requirements.txt").read_text().splitlines()]
    assert {name for name in wanted if name and not name.startswith("#")} <= pinned


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip().lower())


def test_the_seccomp_profile_refuses_what_no_program_needs_and_allows_namespaces() -> None:
    profile = json.loads((DEPLOY / "service" / "seccomp-userns.json").read_text())
    (rule,) = profile["syscalls"]
    assert profile["defaultAction"] == "SCMP_ACT_ALLOW" and rule["action"] == "SCMP_ACT_ERRNO"
    refused = set(rule["names"])
    assert {"bpf", "keyctl", "io_uring_setup", "kexec_load", "init_module", "userfaultfd", "ptrace"} <= refused
    assert not {"unshare", "clone", "clone3", "mount", "umount2", "pivot_root"} & refused
