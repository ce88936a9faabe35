"""Operations on boxes and masks once more: one box, one pixel at a time, in float64."""

import math

import numpy as np


def iou(a, b):
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    shared = width * height if width > 0 and height > 0 else 0.0
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared
    return shared / union if union > 0 else 0.0


def ious(ones, others):
    return np.array([[iou(a, b) for b in others] for a in ones], np.float64)


def encode(box, anchor, weights):
    width, height = anchor[2] - anchor[0], anchor[3] - anchor[1]
    across = (box[0] + box[2]) / 2 - (anchor[0] + anchor[2]) / 2
    down = (box[1] + box[3]) / 2 - (anchor[1] + anchor[3]) / 2
    return [
        weights[0] * across / width,
        weights[1] * down / height,
        weights[2] * math.log((box[2] - box[0]) / width),
        weights[3] * math.log((box[3] - box[1]) / height),
    ]


def decode(code, anchor, weights):
    width, height = anchor[2] - anchor[0], anchor[3] - anchor[1]
    x = (anchor[0] + anchor[2]) / 2 + code[0] / weights[0] * width
    y = (anchor[1] + anchor[3]) / 2 + code[1] / weights[1] * height
    limit = math.log(62.5)
    width *= math.exp(min(code[2] / weights[2], limit))
    height *= math.exp(min(code[3] / weights[3], limit))
    return [x - width / 2, y - height / 2, x + width / 2, y + height / 2]


def match(quality, high, low, keep_best):
    """`quality` [boxes, n] has no idle boxes; -1 is background, -2 is between."""
    boxes, count = quality.shape
    matches = []
    for candidate in range(count):
        best, box = -1.0, 0
        for number in range(boxes):
            if quality[number, candidate] > best:
                best, box = quality[number, candidate], number
        found = box if best >= high else -1 if best < low else -2
        if keep_best:
            for number in range(boxes):
                highest = max(quality[number])
                if highest > 0 and quality[number, candidate] == highest:
                    found = box
        matches.append(found)
    return np.array(matches)


def sample_counts(labels, size, fraction):
    """How many positive and negative ones a balanced sample has."""
    positives = min(sum(label >= 1 for label in labels), int(size * fraction))
    return positives, min(sum(label == 0 for label in labels), size - positives)


def nms(boxes, scores, threshold):
    """Returns the numbers of the boxes that stay, the highest score first."""
    order = sorted(range(len(boxes)), key=lambda i: -scores[i])
    kept = []
    for candidate in order:
        if all(iou(boxes[candidate], boxes[other]) <= threshold for other in kept):
            kept.append(candidate)
    return kept


def bilinear(feature, y, x):
    """Returns a feature [rows, columns, ...] between its cells, as torchvision does."""
    rows, columns = feature.shape[:2]
    if y < -1 or y > rows or x < -1 or x > columns:
        return np.zeros(feature.shape[2:])
    y, x = max(y, 0.0), max(x, 0.0)
    top, left = int(y), int(x)
    if top >= rows - 1:
        y = top = rows - 1
    if left >= columns - 1:
        x = left = columns - 1
    below, right = min(top + 1, rows - 1), min(left + 1, columns - 1)
    down, across = y - top, x - left
    return (
        (1 - down) * (1 - across) * feature[top, left]
        + (1 - down) * across * feature[top, right]
        + down * (1 - across) * feature[below, left]
        + down * across * feature[below, right]
    )


def roi_align(feature, roi, scale, size, samples):
    """Returns [size, size, ...] from so many samples of each cell, each way."""
    left, top, right, bottom = (scale * number for number in roi)
    width, height = max(right - left, 1.0), max(bottom - top, 1.0)
    result = np.zeros((size, size, *feature.shape[2:]))
    for row in range(size):
        for column in range(size):
            for i in range(samples):
                for j in range(samples):
                    y = top + (row + (i + 0.5) / samples) * height / size
                    x = left + (column + (j + 0.5) / samples) * width / size
                    result[row, column] += bilinear(feature, y, x) / samples**2
    return result


def anchors(grid, strides, size, ratios):
    found = []
    for row in range(grid[0]):
        for column in range(grid[1]):
            for ratio in ratios:
                width, height = size / math.sqrt(ratio), size * math.sqrt(ratio)
                x, y = column * strides[1], row * strides[0]
                corners = (-width / 2, -height / 2, width / 2, height / 2)
                corners = [float(np.round(c)) for c in corners]
                found.append([corners[0] + x, corners[1] + y])
                found[-1] += [corners[2] + x, corners[3] + y]
    return np.array(found)
