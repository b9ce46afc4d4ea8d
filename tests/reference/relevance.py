"""Labels of pairs by a loop over images and captions, in float64."""

import numpy as np


def relevance(reference, captions, reference_image, caption_image=None, aggregate="max"):
    reference, captions = np.asarray(reference, dtype=np.float64), np.asarray(captions, dtype=np.float64)
    images = max(reference_image) + 1
    labels = np.empty((images, len(captions)))
    for i in range(images):
        own = [row for row, image in zip(reference, reference_image, strict=True) if image == i]
        for j, caption in enumerate(captions):
            cosines = [row @ caption / np.sqrt(row @ row) / np.sqrt(caption @ caption) for row in own]
            label = sum(cosines) / len(cosines) if aggregate == "mean" else max(cosines)
            if caption_image is not None and caption_image[j] == i:
                label = 1.0
            labels[i, j] = label
    return labels
