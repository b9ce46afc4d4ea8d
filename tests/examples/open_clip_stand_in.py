"""Minimal stand-in of ``open_clip.task`` (main branch, 4.2.0.dev0, commit 89fb801).

open_clip needs torchvision, which is not in the test environment. These classes have the constructor arguments, the
calls and the return values that a task of that branch has in its training loop, and nothing else.
"""

import math

import torch
from torch import nn


class TrainingTask(nn.Module):
    data_keys = ("image", "text")

    def __init__(self, model, *, device=None, dtype=None, verbose=True):
        super().__init__()
        self.trainable_module = model

    def prepare_batch(self, batch, device, input_dtype=None):
        return {
            key: value.to(device=device, dtype=input_dtype if value.is_floating_point() else None)
            for key, value in batch.items()
        }

    @staticmethod
    def _report(source):
        return {key: source[key] for key in ("logit_scale", "logit_bias") if key in source}

    def clamp_logit_scale(self):
        with torch.no_grad():
            self.trainable_module.logit_scale.clamp_(0, math.log(100))

    def eval_forward(self, batch):
        return self.trainable_module(**{key: batch[key] for key in self.data_keys if key in batch})

    def forward(self, batch):
        return self.training_forward(batch) if self.training else self.eval_forward(batch)


class CLIPTask(TrainingTask):
    def __init__(
        self,
        model,
        *,
        loss=None,
        default_loss=True,
        local_loss=False,
        gather_with_grad=False,
        cache_labels=True,
        rank=0,
        world_size=1,
        device=None,
        dtype=None,
        verbose=True,
    ):
        super().__init__(model, device=device, dtype=dtype, verbose=verbose)
        self.loss = loss

    def training_forward(self, batch):
        model_out = self.trainable_module(image=batch["image"], text=batch["text"])
        losses = self.loss(**model_out, output_dict=True)
        losses["loss"] = sum(value for key, value in losses.items() if key.endswith("_loss"))
        return losses, self._report(model_out)


class DistillCLIPTask(CLIPTask):
    def __init__(self, student_model, teacher_model, *, loss=None, **others):
        super().__init__(student_model, loss=loss, **others)
        self.teacher = teacher_model.eval().requires_grad_(False)

    def training_forward(self, batch):
        model_out = self.trainable_module(**batch)
        report = self._report(model_out)
        with torch.no_grad():
            teacher_out = self.teacher(**batch)
        model_out.update({f"dist_{key}": value for key, value in teacher_out.items()})
        losses = self.loss(**model_out, output_dict=True)
        losses["loss"] = sum(value for key, value in losses.items() if key.endswith("_loss"))
        return losses, report
