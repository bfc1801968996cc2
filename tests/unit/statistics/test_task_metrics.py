"""What Prometheus reads about tasks."""

from __future__ import annotations

from shoal.statistics.machine import MachineReading
from shoal.statistics.metrics_settings import MetricsSettings
from shoal.statistics.model import ModelStatistics
from shoal.statistics.prometheus import MetricsRenderer
from shoal.statistics.task import TaskStatistics


def test_models_with_a_task():
    photos = ModelStatistics("photos", 1, labels={"_team": "sea"})
    photos.task = TaskStatistics("image-classification")
    photos.task.call(True, 2_000_000_000)
    photos.task.call(True, 500_000_000)
    photos.task.call(False, 1_000_000)
    photos.task.stage("preprocess")(7, 250_000_000)
    photos.task.stage("postprocess")(2, 4_000_000)
    renderer = MetricsRenderer(
        lambda: [photos, ModelStatistics("plain", 1)],
        MetricsSettings(cpu=False, gpu=False),
        machine=lambda: MachineReading(0.5, 100, 50, 10, 1.0),
    )
    lines = renderer.render().decode().splitlines()
    at = '{_team="sea",model="photos",task="image-classification",version="1"}'
    assert [line for line in lines if line.startswith("shoal_task_")] == [
        f"shoal_task_success_total{at} 2",
        f"shoal_task_success_seconds_total{at} 2.5",
        f"shoal_task_failure_total{at} 1",
        f"shoal_task_failure_seconds_total{at} 0.001",
        f"shoal_task_preprocess_total{at} 7",
        f"shoal_task_preprocess_seconds_total{at} 0.25",
        f"shoal_task_postprocess_total{at} 2",
        f"shoal_task_postprocess_seconds_total{at} 0.004",
    ]
