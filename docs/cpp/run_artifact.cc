// Run a library that `tpo compile` wrote, with nothing but TVM's C++ runtime.
//
//   run_artifact LIBRARY THREADS SHAPE:FILE...
//
// Every SHAPE:FILE is one input in the order of the manifest, e.g. 1,3,224,224:image.bin, the file
// holding raw float32 values. Prints each output's shape, then its values, one per line.

#include <dlpack/dlpack.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace ffi = tvm::ffi;

// The TVM runtime sizes the worker pool of a thread once, at its first use in that thread: call this
// first, from the thread that will run the model. Mode -3 lets all workers share the listed CPUs.
void ConfigureThreads(int threads) {
  setenv("TVM_BIND_THREADS", "0", /*overwrite=*/0);
  const int cpus = std::max(1u, std::thread::hardware_concurrency());
  ffi::Array<ffi::String> listed;
  for (int worker = 0; worker < threads; ++worker) {
    listed.push_back(ffi::String(std::to_string(worker % cpus)));
  }
  ffi::Function::GetGlobalRequired("runtime.config_threadpool")(-3, threads, listed);
}

// The Relax virtual machine of a library, with one CPU device and TVM's pooled allocator.
ffi::Module LoadMachine(const std::string& path) {
  ffi::Module library = ffi::Module::LoadFromFile(path);
  auto machine = library->GetFunction("vm_load_executable").value()().cast<ffi::Module>();
  constexpr int kPooledAllocator = 2;
  machine->GetFunction("vm_initialization").value()(static_cast<int>(kDLCPU), 0, kPooledAllocator);
  return machine;
}

// Compiled code expects every buffer at a multiple of 64 bytes.
struct AlignedMemory {
  void AllocData(DLTensor* tensor) {
    const size_t bytes = (ffi::GetDataSize(*tensor) + 63) / 64 * 64;
    tensor->data = std::aligned_alloc(64, std::max<size_t>(bytes, 64));
    if (tensor->data == nullptr) throw std::bad_alloc();
  }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

ffi::Tensor ReadInput(const std::string& argument) {
  const size_t colon = argument.find(':');
  if (colon == std::string::npos) throw std::invalid_argument("expected SHAPE:FILE, got " + argument);
  std::vector<int64_t> shape;
  std::istringstream dims(argument.substr(0, colon));
  for (std::string dim; std::getline(dims, dim, ',');) shape.push_back(std::stoll(dim));

  ffi::Tensor tensor = ffi::Tensor::FromNDAlloc(AlignedMemory(), ffi::ShapeView(shape.data(), shape.size()),
                                                DLDataType{kDLFloat, 32, 1}, DLDevice{kDLCPU, 0});
  const std::streamsize bytes = tensor.numel() * sizeof(float);
  std::ifstream file(argument.substr(colon + 1), std::ios::binary);
  if (!file.read(static_cast<char*>(tensor.data_ptr()), bytes)) {
    throw std::runtime_error("cannot read " + std::to_string(bytes) + " bytes for " + argument);
  }
  return tensor;
}

void Print(const ffi::Tensor& tensor) {
  std::printf("output");
  for (int64_t dim : tensor.shape()) std::printf(" %lld", static_cast<long long>(dim));
  std::printf("\n");
  const auto* values = static_cast<const float*>(tensor.data_ptr());
  for (int64_t i = 0; i < tensor.numel(); ++i) std::printf("%.9g\n", values[i]);
}

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: run_artifact LIBRARY THREADS SHAPE:FILE...\n";
    return 2;
  }
  try {
    ConfigureThreads(std::atoi(argv[2]));
    ffi::Module machine = LoadMachine(argv[1]);
    std::vector<ffi::Any> inputs;
    for (int i = 3; i < argc; ++i) inputs.push_back(ReadInput(argv[i]));

    ffi::Any result;
    std::vector<ffi::AnyView> views(inputs.begin(), inputs.end());
    machine->GetFunction("main").value().CallPacked(views.data(), static_cast<int>(views.size()), &result);

    // One output comes back as a tensor, several as an array of tensors.
    if (auto tensor = result.try_cast<ffi::Tensor>()) {
      Print(*tensor);
    } else {
      for (const ffi::Tensor& tensor : result.cast<ffi::Array<ffi::Tensor>>()) Print(tensor);
    }
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
}
