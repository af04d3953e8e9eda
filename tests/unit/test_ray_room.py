"""The room that knows Ray is opened only where a cluster is named."""

from __future__ import annotations

import subprocess
import sys

import pytest

GPU = "EnginesBackend(kind='engines', cost_per_hour=0, models={'m': {'model': '/m'}})"
CLUSTER = "RayBackend(kind='ray', ray_python='/none', models={'m': {'model': '/m', 'cost_per_hour': 0}})"
PROGRAM = """
import pathlib, sys
import orchestrator.cli.validate_and_doctor
import orchestrator.cli.cluster, orchestrator.cli.serve, orchestrator.documents.readers
import orchestrator.daemon.fleet_controller, orchestrator.daemon.home_backends, orchestrator.daemon.loop
from orchestrator.daemon.drivers import driver_for
from orchestrator.settings.backends import EnginesBackend, RayBackend
driver_for('b', %s, pathlib.Path('.'), print)
print(*(name for name in sys.modules if name.startswith('orchestrator.ray')))
"""
"""Import what may open the room, and make a driver."""


@pytest.mark.thinned(2)
@pytest.mark.slow
@pytest.mark.parametrize(("settings", "is_opened"), [(GPU, False), (CLUSTER, True)])
def test_only_a_cluster_opens_the_room(settings: str, is_opened: bool) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM % settings], capture_output=True, text=True, check=True)
    assert ("orchestrator.ray.driver" in done.stdout.split()) is is_opened
    assert bool(done.stdout.strip()) is is_opened
