"""A recipe: every fifth image of CIFAR-10 as a folder of images, 16x16 pixels, and one convolution.

python benchmarks/neutral/cifar10_small.py --data-dir FOLDER
"""

from torch import nn

from fl_lightning.data import image_folder
from fl_lightning.data.dataset import TrainTest
from fl_lightning.data.image_folder import Root, Size
from fl_lightning.experiment import Experiment


def every_fifth(root: Root, size: Size = 16) -> TrainTest:
    """Every fifth image of each class, 10,000 and 2,000 of CIFAR-10's, scaled to size x size."""
    train, test = image_folder(root, size)
    return train.subset(slice(None, None, 5)), test.subset(slice(None, None, 5))


def one_convolution(classes: int = 10, channels: int = 3, size: int = 16) -> nn.Sequential:
    """A 5x5 convolution of 32 channels and stride 2, and a hidden layer of 64."""
    side = (size - 3) // 2
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * side * side, 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )


if __name__ == "__main__":
    Experiment(data=[every_fifth], models=[one_convolution], doc=__doc__).run()
