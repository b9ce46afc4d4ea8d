"""Image features: backbones, regions, and their extraction on one machine or a Ray cluster.

Import from the modules: :mod:`bcls.features.backbones`, :mod:`bcls.features.regions`, :mod:`bcls.features.extraction`,
:mod:`bcls.features.jobs`.
"""
