"""Writes what torch computes with the examples' models, for test_torch_*.py.

The models are written here once more, in torch alone and with torchvision's names in
their state dicts. Weights and running statistics are random. A file holds the state
dict (names with "state." before them), images, and outputs in evaluation and training.

`make torch-check` checks the models of full size (430 MB of files, not kept).
`--thin DIR` writes the small ones, which are kept beside this script.
"""

import argparse
import collections
import pathlib

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]
from torch.nn.functional import (  # pyright: ignore[reportMissingImports]
    interpolate,
    pad,
    relu,
)


def conv(inputs, outputs, size, stride=1, dilation=1):
    return nn.Conv2d(
        inputs,
        outputs,
        size,
        stride,
        padding=dilation * (size // 2),
        dilation=dilation,
        bias=False,
    )


class Basic(nn.Module):
    expansion = 1

    def __init__(self, inputs, width, stride, dilation, downsample):
        super().__init__()
        self.conv1 = conv(inputs, width, 3, stride, dilation)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, 3, 1, dilation)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = downsample

    def forward(self, x):
        y = self.bn2(self.conv2(relu(self.bn1(self.conv1(x)))))
        return relu(y + (self.downsample(x) if self.downsample else x))


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, inputs, width, stride, dilation, downsample):
        super().__init__()
        self.conv1 = conv(inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, 3, stride, dilation)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = conv(width, 4 * width, 1)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = downsample

    def forward(self, x):
        y = relu(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(relu(self.bn2(self.conv2(y)))))
        return relu(y + (self.downsample(x) if self.downsample else x))


def stage(block, inputs, width, depth, stride, dilations):
    """`dilations` are those of the first block and of the others."""
    outputs = width * block.expansion
    downsample = None
    if stride != 1 or inputs != outputs:
        downsample = nn.Sequential(
            conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)
        )
    first = block(inputs, width, stride, dilations[0], downsample)
    rest = [block(outputs, width, 1, dilations[1], None) for _ in range(depth - 1)]
    return nn.Sequential(first, *rest)


class ResNet(nn.Module):
    """Strides 2, 2, 2 after the first stage; an atrous one has 2, 1, 1."""

    def __init__(self, block, depths, widths, classes, atrous=False):
        super().__init__()
        self.conv1 = conv(3, widths[0], 7, 2)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        wide = [width * block.expansion for width in widths]
        third, fourth = ((1, (1, 2)), (1, (2, 4))) if atrous else ((2, (1, 1)),) * 2
        self.layer1 = stage(block, widths[0], widths[0], depths[0], 1, (1, 1))
        self.layer2 = stage(block, wide[0], widths[1], depths[1], 2, (1, 1))
        self.layer3 = stage(block, wide[1], widths[2], depths[2], *third)
        self.layer4 = stage(block, wide[2], widths[3], depths[3], *fourth)
        if classes is not None:
            self.fc = nn.Linear(wide[3], classes)

    def features(self, x):
        x = self.maxpool(relu(self.bn1(self.conv1(x))))
        x = self.layer3(self.layer2(self.layer1(x)))
        return x, self.layer4(x)

    def forward(self, x):
        return {"output": self.fc(self.features(x)[1].mean((2, 3)))}


class ASPP(nn.Module):
    def __init__(self, inputs, width, rates):
        super().__init__()
        branches = [nn.Sequential(conv(inputs, width, 1), nn.BatchNorm2d(width))]
        for rate in rates:
            dilated = conv(inputs, width, 3, 1, rate)
            branches.append(nn.Sequential(dilated, nn.BatchNorm2d(width)))
        pooled = (nn.AdaptiveAvgPool2d(1), conv(inputs, width, 1))
        branches.append(nn.Sequential(*pooled, nn.BatchNorm2d(width)))
        self.convs = nn.ModuleList(branches)
        self.project = nn.Sequential(
            conv(5 * width, width, 1), nn.BatchNorm2d(width), nn.ReLU()
        )

    def forward(self, x):
        branches = [relu(branch(x)) for branch in self.convs]
        branches[-1] = interpolate(
            branches[-1], x.shape[-2:], mode="bilinear", align_corners=False
        )
        return self.project(torch.cat(branches, 1))


class DeepLabV3(nn.Module):
    """Without dropout, of which the reference in training has none."""

    def __init__(self, block, depths, widths, classes, width, rates):
        super().__init__()
        self.backbone = ResNet(block, depths, widths, None, atrous=True)
        middle, last = (block.expansion * w for w in widths[-2:])
        self.classifier = nn.Sequential(
            ASPP(last, width, rates),
            conv(width, width, 3),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, classes, 1),
        )
        self.aux_classifier = nn.Sequential(
            conv(middle, middle // 4, 3),
            nn.BatchNorm2d(middle // 4),
            nn.ReLU(),
            nn.Identity(),  # the place of dropout
            nn.Conv2d(middle // 4, classes, 1),
        )

    def forward(self, x):
        middle, last = self.backbone.features(x)
        logits = {"output": self.classifier(last), "aux": self.aux_classifier(middle)}
        return {
            name: interpolate(y, x.shape[-2:], mode="bilinear", align_corners=False)
            for name, y in logits.items()
        }


class Pyramid(nn.Module):
    def __init__(self, inputs, width):
        super().__init__()
        self.inner_blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(i, width, 1)) for i in inputs
        )
        self.layer_blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1)) for _ in inputs
        )

    def forward(self, features):
        above = self.inner_blocks[-1](features[-1])
        levels = [self.layer_blocks[-1](above)]
        for index in (2, 1, 0):
            inner = self.inner_blocks[index](features[index])
            above = inner + interpolate(above, inner.shape[-2:], mode="nearest")
            levels.insert(0, self.layer_blocks[index](above))
        return [*levels, nn.functional.max_pool2d(levels[-1], 1, 2)]


def conv_relu(width):
    return nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU())


class MaskRCNN(nn.Module):
    """The layers alone; the heads see a corner of the first level for a box.

    In evaluation, a batch norm is torchvision's frozen one.
    """

    def __init__(self, block, depths, widths, classes, width, hidden):
        super().__init__()
        self.backbone = nn.Module()
        self.backbone.body = ResNet(block, depths, widths, None)
        inputs = [block.expansion * w for w in widths]
        self.backbone.fpn = Pyramid(inputs, width)
        self.rpn = nn.Module()
        self.rpn.head = nn.Module()
        self.rpn.head.conv = nn.Sequential(conv_relu(width))
        self.rpn.head.cls_logits = nn.Conv2d(width, 3, 1)
        self.rpn.head.bbox_pred = nn.Conv2d(width, 12, 1)
        self.roi_heads = heads = nn.Module()
        heads.box_head = nn.Module()
        heads.box_head.fc6 = nn.Linear(49 * width, hidden)
        heads.box_head.fc7 = nn.Linear(hidden, hidden)
        heads.box_predictor = nn.Module()
        heads.box_predictor.cls_score = nn.Linear(hidden, classes)
        heads.box_predictor.bbox_pred = nn.Linear(hidden, 4 * classes)
        heads.mask_head = nn.Sequential(*(conv_relu(width) for _ in range(4)))
        heads.mask_predictor = nn.Sequential(
            collections.OrderedDict(
                conv5_mask=nn.ConvTranspose2d(width, width, 2, 2),
                relu=nn.ReLU(),
                mask_fcn_logits=nn.Conv2d(width, classes, 1),
            )
        )

    def forward(self, x):
        body, heads = self.backbone.body, self.roi_heads
        features = [body.layer1(body.maxpool(relu(body.bn1(body.conv1(x)))))]
        for layer in (body.layer2, body.layer3, body.layer4):
            features.append(layer(features[-1]))
        levels = self.backbone.fpn(features)
        outputs = {f"level{index}": level for index, level in enumerate(levels)}
        for index, level in enumerate(levels):
            hidden = self.rpn.head.conv(level)
            codes = self.rpn.head.bbox_pred(hidden)
            n, _, rows, columns = codes.shape
            codes = codes.view(n, 3, 4, rows, columns).permute(0, 3, 4, 1, 2)
            outputs[f"codes{index}"] = codes.reshape(n, -1, 4)
            outputs[f"logits{index}"] = self.rpn.head.cls_logits(hidden)
        pooled = relu(heads.box_head.fc6(levels[0][:, :, :7, :7].flatten(1)))
        pooled = relu(heads.box_head.fc7(pooled))
        outputs["classes"] = heads.box_predictor.cls_score(pooled)
        outputs["boxes"] = heads.box_predictor.bbox_pred(pooled)
        masks = heads.mask_head(levels[0][:, :, :14, :14])
        outputs["masks"] = heads.mask_predictor(masks)
        return outputs


def detection_operations():
    """What torch alone computes of a detector's operations."""
    generator = torch.Generator().manual_seed(0)
    grid = torch.rand((28, 28), generator=generator)
    arrays = {"grid": grid}
    places = {"small": (3, 5, 17, 22), "large": (0, 0, 60, 41)}
    for name, (left, top, columns, rows) in places.items():
        padded = pad(grid, (1, 1, 1, 1))[None, None]
        scaled = interpolate(
            padded, (rows, columns), mode="bilinear", align_corners=False
        )
        image = torch.zeros(64, 64)
        image[top : top + rows, left : left + columns] = scaled[0, 0]
        arrays[f"pasted.{name}"] = image
        # The box that torchvision would round to those pixels.
        half = torch.tensor([(columns - 1) / 2, (rows - 1) / 2])
        middle = torch.tensor([left, top]) + half + 0.25
        half *= 28 / 30
        arrays[f"box.{name}"] = torch.cat([middle - half, middle + half])
    return {name: tensor.numpy() for name, tensor in arrays.items()}


def randomize(model, generator):
    """Draws all weights and statistics, rounded so that the files compress."""
    for name, tensor in model.state_dict().items():
        if name.endswith("num_batches_tracked"):
            continue
        normal = torch.randn(tensor.shape, generator=generator)
        if tensor.ndim > 1:
            value = normal * (2 / tensor[0].numel()) ** 0.5
        elif name.endswith(("bias", "running_mean")):
            value = 0.2 * normal
        else:  # scales and variances
            value = 0.5 + torch.rand(tensor.shape, generator=generator)
        tensor.copy_(value.bfloat16())


def channels_last(tensor):
    return tensor.movedim(1, -1).numpy() if tensor.ndim == 4 else tensor.numpy()


@torch.no_grad()
def reference(model, size, count):
    """Returns the arrays of one file: images and outputs have channels last."""
    generator = torch.Generator().manual_seed(0)
    randomize(model, generator)
    images = torch.randn((count, 3, *size), generator=generator)
    images = images.bfloat16().float()
    arrays = {f"state.{n}": t.numpy().copy() for n, t in model.state_dict().items()}
    arrays["images"] = channels_last(images)
    outputs = model.eval()(images)
    arrays |= {f"eval.{name}": channels_last(y) for name, y in outputs.items()}
    if isinstance(model, MaskRCNN):
        return arrays
    outputs = model.train()(images)
    arrays |= {f"train.{name}": channels_last(y) for name, y in outputs.items()}
    return arrays


# A model, the size of its images and their number. No stride divides the sides, and the
# widths let each rate of dilation reach.
WIDTHS = (64, 128, 256, 512)
RATES = (12, 24, 36)
THIN = {
    "resnet_basic": lambda: (ResNet(Basic, (1, 2, 1, 1), (4, 4, 8, 8), 5), (37, 50), 3),
    "deeplab_bottleneck": lambda: (
        DeepLabV3(Bottleneck, (1, 1, 2, 2), (4, 4, 4, 4), 3, 4, (1, 2, 3)),
        (21, 34),
        3,
    ),
}
DETECTORS = {
    "maskrcnn_bottleneck": lambda: (
        MaskRCNN(Bottleneck, (1, 1, 1, 1), (4, 4, 4, 4), 3, 8, 16),
        (64, 96),
        2,
    ),
}
FULL = {
    "resnet18": lambda: (ResNet(Basic, (2, 2, 2, 2), WIDTHS, 1000), (97, 128), 3),
    "resnet34": lambda: (ResNet(Basic, (3, 4, 6, 3), WIDTHS, 1000), (97, 128), 3),
    "resnet50": lambda: (ResNet(Bottleneck, (3, 4, 6, 3), WIDTHS, 1000), (97, 128), 3),
    "deeplabv3-resnet50": lambda: (
        DeepLabV3(Bottleneck, (3, 4, 6, 3), WIDTHS, 21, 256, RATES),
        (67, 317),
        3,
    ),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--thin", type=pathlib.Path)
    parser.add_argument("--full", type=pathlib.Path)
    arguments = parser.parse_args()
    for folder, cases, save in (
        (arguments.thin, THIN | DETECTORS, np.savez_compressed),
        (arguments.full, FULL, np.savez),
    ):
        if folder is None:
            continue
        folder.mkdir(parents=True, exist_ok=True)
        for name, make in cases.items():
            save(folder / f"{name}.npz", **reference(*make()))
    if arguments.thin is not None:
        path = arguments.thin / "detection_operations.npz"
        np.savez_compressed(path, **detection_operations())


if __name__ == "__main__":
    main()
