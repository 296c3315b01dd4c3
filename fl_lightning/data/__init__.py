"""Data sets on the device, split over clients: sources, partition schemes, batches and augmentation."""

from fl_lightning.data import schemes, sources
from fl_lightning.data.alignment import aligned
from fl_lightning.data.augment import CropFlip
from fl_lightning.data.clients import Batches, ClientData
from fl_lightning.data.dataset import Dataset
from fl_lightning.data.image_folder import domain_folder, image_folder
from fl_lightning.data.partition import Partition

__all__ = [
    "Batches",
    "ClientData",
    "CropFlip",
    "Dataset",
    "Partition",
    "aligned",
    "domain_folder",
    "image_folder",
    "schemes",
    "sources",
]
