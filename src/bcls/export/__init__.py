"""Models for use without this package: ONNX files of both towers, and folders for the Hugging Face Hub."""

from bcls.export.folder import export_folder
from bcls.export.onnx import Exported, export_onnx

__all__ = ["Exported", "export_folder", "export_onnx"]
