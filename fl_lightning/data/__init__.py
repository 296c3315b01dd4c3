"""Data sets on the device, split over clients: sources, schemes, batches and augmentation."""

from fl_lightning.data import partitions as partitions
from fl_lightning.data import schemes as schemes
from fl_lightning.data import sources as sources
from fl_lightning.data.augmentation import CropFlip as CropFlip
from fl_lightning.data.client_data import Batches as Batches
from fl_lightning.data.client_data import ClientData as ClientData
from fl_lightning.data.dataset import DeviceDataset as DeviceDataset
from fl_lightning.data.federated import FederatedData as FederatedData
from fl_lightning.data.held_out import hold_out as hold_out
from fl_lightning.data.held_out import hold_out_of_clients as hold_out_of_clients
from fl_lightning.data.held_out import matched_test_split as matched_test_split
from fl_lightning.data.held_out import own_test_split as own_test_split
from fl_lightning.data.image_folder import domain_folder as domain_folder
from fl_lightning.data.image_folder import image_folder as image_folder
from fl_lightning.data.partition import Partition as Partition
