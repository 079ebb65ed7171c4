// The tour of the README: opens a checkpoint, lists its tensors, converts it, and uploads a tensor to a device.
#include <safemap/safemap.hpp>

#include <iostream>

int main(int argc, char** argv) {
    if (argc < 3) return 2;
    auto model = safemap::Checkpoint::open(argv[1]);  // a .pt, a .safetensors, a folder, an index
    for (const auto& t : model) std::cout << t.name() << ' ' << t.dtype() << ' ' << t.shape() << '\n';

    auto w = model.tensor(0);                              // a LazyTensor: no byte of it has been read
    auto row = w.slice({{.start = 0, .stop = 1}}).load();  // reads only this row
    std::cout << row.nbytes() << " of " << w.nbytes() << " bytes\n";

    auto report = safemap::save(argv[2], model, {.dtype = safemap::Dtype::bf16});
    std::cout << report.tensors << " tensors written\n";  // the file is complete, or save() has thrown

    safemap::Uploader uploader(safemap::Device::open("host"), model);
    auto lease = uploader.acquire(uploader.bundle(w.name()));  // stays on the device until the lease ends
    std::cout << lease.tensors().size() << " on the device\n";
}
