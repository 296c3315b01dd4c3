"""Data sets on the device, split over clients: sources, schemes, batches and augmentation.

Imports `core` and below.
"""

from fl_lightning.data import schemes, sources
from fl_lightning.data.aligned_test import aligned
from fl_lightning.data.augmentation import CropFlip
from fl_lightning.data.client_data import Batches, ClientData
from fl_lightning.data.dataset import DeviceDataset
from fl_lightning.data.image_folder import domain_folder, image_folder
from fl_lightning.data.partition import Partition
from fl_lightning.data.validation import hold_out, hold_out_of_clients

__all__ = [
    "Batches",
    "ClientData",
    "CropFlip",
    "DeviceDataset",
    "Partition",
    "aligned",
    "domain_folder",
    "hold_out",
    "hold_out_of_clients",
    "image_folder",
    "schemes",
    "sources",
]
