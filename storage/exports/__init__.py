"""Datasets out, in formats of other libraries: one exporter a file, one registry."""

from .base import Exporter, ExportSummary
from .driver import export_dataset
from .registry import EXPORTERS, get_exporter

__all__ = ["EXPORTERS", "ExportSummary", "Exporter", "export_dataset", "get_exporter"]
