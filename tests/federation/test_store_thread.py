"""The thread that writes the rows of the client store."""

import gc
from unittest.mock import Mock, call

import pytest
import torch
from client_rows import PLENTY, new_store, row_threads, write

from fl_lightning.federation.client_store import ClientStore

TIMEOUT_S = 30.0


def test_the_thread_ends_with_its_store(tmp_path):
    others = row_threads()
    store = new_store(tmp_path, 0)
    write(store, 1.0, 0)
    (thread,) = row_threads() - others
    del store
    gc.collect()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


@pytest.mark.parametrize("device", ["cuda:1", "cpu"])
def test_the_thread_works_for_the_gpu_that_rows_come_from(device, tmp_path, monkeypatch):
    """CUDA calls of a new thread would take memory of GPU 0, which is another rank's."""
    set_device = Mock()
    monkeypatch.setattr(torch.cuda, "set_device", set_device)
    h = Mock(nbytes=16, device=torch.device(device))
    store = ClientStore(tmp_path, 5, [{"h": h}], PLENTY)
    assert not set_device.called
    store._thread.submit(int).result(TIMEOUT_S)
    assert set_device.mock_calls == ([call(torch.device(device))] if device != "cpu" else [])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("memory", [0, 1 << 25, 1 << 30])
def test_rows_that_are_still_being_computed_are_kept_whole(memory, tmp_path):
    """And read ahead while others are computed, through pinned memory and without waiting."""
    size, device, clients = 1 << 22, torch.device("cuda"), range(4)
    store = ClientStore(tmp_path, len(clients), [{"h": torch.zeros(size, device=device)}], memory)
    a, one = torch.eye(4096, device=device), torch.ones(size, device=device)
    for _ in range(6):
        for client in clients:
            store.prefetch([client, client + 1][: len(clients) - client])
            h = store.read(client, device)[0]["h"] if store.has(client) else one * client
            for _ in range(20):
                a = a @ a
            h = h + one * a[0, 0]
            store.write(client, [{"h": h}])
            h.zero_()  # in the order of the device, so after the copy
            store.wait_for_writes(but=1)
        store.commit(clients)
        store.retain()
    for client in clients:
        assert bool((store.read(client, device)[0]["h"] == client + 6).all())
