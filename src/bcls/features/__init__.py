"""Image features: backbones, crops and regions, extraction, and the resumable array cache.

Import from the modules: :mod:`bcls.features.backbones`, :mod:`bcls.features.regions`, :mod:`bcls.features.extraction`,
:mod:`bcls.features.jobs` (local and Ray engine), :mod:`bcls.features.array_cache`.
"""
