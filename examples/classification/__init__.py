"""Image classification: ResNets on CIFAR-10 or ImageNet."""
