// A device "cuda" for builds of PyTorch without CUDA. Its memory is the host's, its kernels are the CPU's.
//
// Every operation on its tensors comes to `run`, since a build without CUDA has no other kernel for them. Tensors of the host
// and of the device do not mix, as on a GPU. While a stream is captured, calls are recorded with their addresses and write
// nothing; a replay repeats them at these addresses.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

#include <functional>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

using namespace at;
using c10::OperatorHandle;
using torch::jit::Stack;

namespace {

const Device GPU(kCUDA, 0);
thread_local c10::StreamId current_stream = 0;
int sync_debug_mode = 0;  // of what waits for the device: 1 warns, 2 refuses

// Without these three there is no tensor, no gradient and no stream on a device.

struct Memory final : Allocator {
  DataPtr allocate(size_t n) override {
    void* data = n ? c10::alloc_cpu(n) : nullptr;
    return {data, data, &c10::free_cpu, GPU};
  }
  DeleterFnPtr raw_deleter() const override { return &c10::free_cpu; }
  void copy_data(void* to, const void* from, size_t n) const override { memcpy(to, from, n); }
} memory;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return kCUDA; }
  Device exchangeDevice(Device) const override { return GPU; }
  Device getDevice() const override { return GPU; }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(Device) const override { return stream(current_stream); }
  c10::Stream getDefaultStream(Device) const override { return stream(0); }
  c10::Stream exchangeStream(c10::Stream s) const override {
    return stream(std::exchange(current_stream, s.id()));
  }
  void record(void**, const c10::Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void recordDataPtrOnStream(const DataPtr&, const c10::Stream&) const override {}

  static c10::Stream stream(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, GPU, id); }
} guard;

struct CUDAHooks : CUDAHooksInterface {
  CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  int getNumGPUs() const override { return 1; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  DeviceIndex current_device() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  Allocator* getPinnedMemoryAllocator() const override { return GetAllocator(kCPU); }
  Device getDeviceFromPtr(void*) const override { return GPU; }
  void deviceSynchronize(DeviceIndex) const override {}
  const Generator& getDefaultGenerator(DeviceIndex) const override { return at::detail::getDefaultCPUGenerator(); }
  Generator getNewGenerator(DeviceIndex) const override { return at::detail::createCPUGenerator(); }
};

// Graphs.

struct Recorded {
  OperatorHandle op;
  Stack given, returned;  // on the host, in the memory of the device
  std::vector<IValue> held;
};

struct Graph {
  std::vector<Recorded> calls;
  std::unordered_map<StorageImpl*, std::pair<Storage, std::vector<char>>> before;
};

std::map<int, Graph> graphs;
int captured = 0;  // the graph that is being captured
c10::StreamId captured_stream = 0;

// The arguments of a call as tensors of the host in the same memory, and its results back.

IValue each(const IValue& value, const std::function<Tensor(const Tensor&)>& f) {
  if (value.isTensor()) return f(value.toTensor());
  if (value.isTensorList()) {
    std::vector<Tensor> all;
    for (const Tensor& t : value.toTensorVector()) all.push_back(f(t));
    return all;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> all;
    for (const auto& t : value.toOptionalTensorVector()) all.push_back(t ? std::optional(f(*t)) : std::nullopt);
    return all;
  }
  return value;
}

Storage on(Device device, const Storage& storage) {  // the same memory as another device's
  auto free = [](void* kept) { delete static_cast<Storage*>(kept); };
  DataPtr data(storage.mutable_data(), new Storage(storage), free, device);
  return Storage(c10::make_intrusive<StorageImpl>(
      StorageImpl::use_byte_size_t(), storage.nbytes(), std::move(data), GetAllocator(device.type()), true));
}

Tensor like(const Tensor& t, const Storage& storage, DispatchKey key) {
  auto made = at::detail::make_tensor<TensorImpl>(Storage(storage), DispatchKeySet(key), t.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  return made;
}

struct Call {
  std::unordered_map<StorageImpl*, Storage> of_host, of_gpu;  // by the storage on the other side
  std::unordered_map<TensorImpl*, Tensor> originals;          // by the tensor on the host
  std::unordered_set<TensorImpl*> host;
  std::vector<std::pair<Tensor, Tensor>> pairs;
  bool vectors = false, numbers = false;  // whether tensors of the host are given, with axes and without

  Tensor to_host(const Tensor& t) {
    if (!t.defined()) return t;
    if (!t.is_cuda()) {
      host.insert(t.unsafeGetTensorImpl());
      (t.dim() ? vectors : numbers) = true;
      return t;
    }
    auto* own = t.storage().unsafeGetStorageImpl();
    if (!of_host.count(own)) {
      of_host.emplace(own, on(kCPU, t.storage()));
      of_gpu.emplace(of_host.at(own).unsafeGetStorageImpl(), t.storage());
    }
    Tensor alias = like(t, of_host.at(own), DispatchKey::CPU);
    originals.emplace(alias.unsafeGetTensorImpl(), t);
    pairs.emplace_back(t, alias);
    return alias;
  }

  Tensor to_gpu(const Tensor& t) {
    if (!t.defined() || host.count(t.unsafeGetTensorImpl())) return t;
    if (auto own = originals.find(t.unsafeGetTensorImpl()); own != originals.end()) return own->second;
    auto* storage = t.storage().unsafeGetStorageImpl();
    if (!of_gpu.count(storage)) of_gpu.emplace(storage, on(GPU, t.storage()));
    return like(t, of_gpu.at(storage), DispatchKey::CUDA);
  }

  void resize() {  // what was given as out=
    for (auto& [t, alias] : pairs) {
      if (t.storage().data() != alias.storage().data()) {
        auto* own = t.storage().unsafeGetStorageImpl();
        auto free = [](void* kept) { delete static_cast<Storage*>(kept); };
        own->set_data_ptr_noswap(DataPtr(alias.storage().mutable_data(), new Storage(alias.storage()), free, GPU));
        own->set_nbytes(alias.storage().nbytes());
      }
      t.unsafeGetTensorImpl()->set_sizes_and_strides(alias.sizes(), alias.strides(), alias.storage_offset());
    }
  }
};

void on_host(const OperatorHandle& op, Stack* stack) {
  AutoDispatchBelowADInplaceOrView below;
  op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);
}

const std::set<std::string> TAKE_BOTH = {"aten::copy_", "aten::index.Tensor", "aten::index.Tensor_out", "aten::_index_put_impl_"};
const std::set<std::string> WAIT = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal", "aten::_unique2",
                                    "aten::unique_dim", "aten::unique_consecutive", "aten::bincount", "aten::repeat_interleave.Tensor"};

void run(const OperatorHandle& op, Stack* stack) {
  c10::InferenceMode off(false);
  const auto& schema = op.schema();
  const std::string name = toString(op.operator_name());
  const size_t n = schema.arguments().size(), first = stack->size() - n;
  Call call;
  bool is_async = false;
  for (size_t i = 0; i < n; ++i) {
    IValue& value = (*stack)[first + i];
    if (value.isDevice()) value = Device(kCPU);
    if (value.isBool() && schema.arguments()[i].name() == "non_blocking") is_async = value.toBool();
    value = each(value, [&](const Tensor& t) { return call.to_host(t); });
  }
  TORCH_CHECK(
      call.pairs.empty() || !call.vectors || TAKE_BOTH.count(name),
      name, ": Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!");
  const bool copies = name == "aten::copy_" && !call.host.empty() && !is_async;
  const bool indexes = call.vectors && name != "aten::copy_" && !call.pairs.empty();
  const bool waits = WAIT.count(name) || copies || indexes;
  TORCH_CHECK(!waits || sync_debug_mode < 2, "called a synchronizing CUDA operation: ", name);
  if (waits && sync_debug_mode == 1) TORCH_WARN("called a synchronizing CUDA operation: ", name);

  Graph* graph = captured && current_stream == captured_stream ? &graphs[captured] : nullptr;
  Recorded recorded{op, {}, {}, {}};
  if (graph) {
    TORCH_CHECK(!waits && !call.vectors, "operation not permitted when stream is capturing: ", name);
    for (size_t i = 0; i < n; ++i) {
      auto* info = schema.arguments()[i].alias_info();
      recorded.given.push_back(each((*stack)[first + i], [&](const Tensor& t) {
        auto own = t.defined() ? call.originals.find(t.unsafeGetTensorImpl()) : call.originals.end();
        if (own == call.originals.end()) return t.defined() ? t.clone() : t;  // a graph keeps a number as it is now
        if (info && info->isWrite()) {
          Storage storage = own->second.storage();
          auto* data = static_cast<const char*>(storage.data());
          graph->before.try_emplace(
              storage.unsafeGetStorageImpl(), storage, std::vector<char>(data, data + storage.nbytes()));
        }
        return t;
      }));
    }
  }
  on_host(op, stack);
  call.resize();
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i) {
    if (graph) recorded.returned.push_back((*stack)[i]);
    (*stack)[i] = each((*stack)[i], [&](const Tensor& t) { return call.to_gpu(t); });
    if (graph) recorded.held.push_back((*stack)[i]);
  }
  for (auto& [t, alias] : call.pairs)
    if (graph) recorded.held.push_back(t);
  if (graph) graph->calls.push_back(std::move(recorded));
}

// Operations that look at the device by themselves, and so must not come to the CPU's.

Tensor& set_strided(Tensor& self, Storage source, int64_t offset, IntArrayRef sizes, IntArrayRef strides) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  auto given = strides.size() == sizes.size() ? strides.vec() : at::detail::defaultStrides(sizes);
  self.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, given, offset);
  return self;
}

Tensor& set_storage(Tensor& self, Storage source) {
  const int64_t n = source.nbytes() / self.dtype().itemsize();
  return set_strided(self, std::move(source), 0, {n}, {1});
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_strided(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

}  // namespace

namespace at {
using ::CUDAHooks;
REGISTER_CUDA_HOOKS(CUDAHooks)
}  // namespace at

TORCH_LIBRARY_IMPL(_, CUDA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("copy_", torch::CppFunction::makeFromBoxedFunction<&run>());
  m.impl("set_.source_Storage", &set_storage);
  m.impl("set_.source_Storage_storage_offset", &set_strided);
  m.impl("set_.source_Tensor", &set_tensor);
}

extern "C" {
void plug_in() {
  c10::SetAllocator(kCUDA, &memory, 255);
  c10::impl::registerDeviceGuard(kCUDA, &guard);
}
int get_sync_debug_mode() { return sync_debug_mode; }
void set_sync_debug_mode(int mode) { sync_debug_mode = mode; }
int64_t exchange_stream(int64_t stream) { return std::exchange(current_stream, stream); }
int64_t stream() { return current_stream; }

void begin_capture(int graph) {
  captured = graph;
  captured_stream = current_stream;
}
void end_capture() {
  Graph& graph = graphs[std::exchange(captured, 0)];
  for (auto& [_, kept] : graph.before) memcpy(kept.first.mutable_data(), kept.second.data(), kept.second.size());
  graph.before.clear();
}
void replay(int graph) {
  for (auto& call : graphs[graph].calls) {
    Stack stack = call.given;
    on_host(call.op, &stack);
    for (size_t i = 0; i < call.returned.size(); ++i) {
      std::vector<Tensor> places;
      each(call.returned[i], [&](const Tensor& t) { places.push_back(t); return t; });
      auto place = places.begin();
      each(stack[i], [&](const Tensor& t) {
        if (t.defined() && t.data_ptr() != place->data_ptr()) place->copy_(t);
        ++place;
        return t;
      });
    }
  }
}
void forget(int graph) { graphs.erase(graph); }
}
