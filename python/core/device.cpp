// safemap.Uploader, and the leases of tensors that it brings to a device.
#include "core.hpp"
#include "imported.hpp"

#include <safemap/advanced/device_dlpack.hpp>
#include <safemap/advanced/text.hpp>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/unique_ptr.h>

#include <chrono>
#include <cmath>
#include <map>
#include <mutex>
#include <set>

namespace safemap::python {
namespace {

[[noreturn]] void refuse_call(const std::string& why) { raise(Error(Errc::invalid_argument, why)); }

/// Returns the stream of a number (a CUstream or a cl_command_queue), or of a torch.cuda.Stream; none for None.
NativeStream stream_from(nb::handle value, NativeStream::Kind kind) {
    if (value.is_none()) return {};
    if (kind == NativeStream::Kind::none) refuse_call("the device has no streams");
    const nb::object number = nb::getattr(value, "cuda_stream", nb::borrow(value));
    if (!PyLong_Check(number.ptr()) || PyBool_Check(number.ptr()))
        wrong_type("a stream: an int or a torch.cuda.Stream", value);
    void* const handle = PyLong_AsVoidPtr(number.ptr());
    if (PyErr_Occurred()) throw nb::python_error();
    return {kind, handle};
}

Request request_from(nb::handle deadline, int priority, nb::object progress) {
    Request request{.priority = priority, .monitor = monitor_for(std::move(progress))};
    if (deadline.is_none()) return request;
    const double seconds = real_from(deadline, "deadline");
    if (!(seconds >= 0)) refuse_call("the deadline is no number of seconds from 0 on");
    // A time point of more than a year from now would overflow.
    if (seconds < 3.2e7)
        request.deadline =
            std::chrono::steady_clock::now() +
            std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
    return request;
}

/// A lease, which tensors of torch share. A lease is for one thread at a time, so each use takes the lock.
class Leased {
public:
    Leased(Lease lease, std::shared_ptr<Device> device)
        : lease_(std::make_shared<Lease>(std::move(lease))), device_(std::move(device)) {}
    ~Leased() {
        if (lease_) let_go(std::move(lease_));
    }
    Leased(const Leased&) = delete;
    Leased& operator=(const Leased&) = delete;

    /// Calls `use` with the lease. Raises invalid_argument once it has ended.
    template <class Use> auto with(Use&& use) {
        const Turn turn(turns_);
        const std::shared_ptr<Lease> lease = lease_;  // code of Python that runs meanwhile may end this one
        if (!lease) refuse_call("the lease has ended");
        return use(lease);
    }
    /// Ends the lease, as soon as no tensor of torch shares it.
    void end(nb::handle stream) {
        const NativeStream after = stream_from(stream, device_->stream_kind());
        const Turn turn(turns_);
        std::shared_ptr<Lease> lease = std::exchange(lease_, nullptr);
        without_gil([&] {
            if (lease && after && lease.use_count() == 1) lease->release(after);
            lease.reset();
        });
    }
    bool ended() const noexcept { return lease_ == nullptr; }
    const std::shared_ptr<Device>& device() const noexcept { return device_; }

private:
    Turns turns_;
    std::shared_ptr<Lease> lease_;
    std::shared_ptr<Device> device_;
};

using SharedLease = std::shared_ptr<Leased>;

/// safemap.Lease.
struct Held {
    SharedLease leased;

    template <class Use> auto with(Use&& use) const { return leased->with(std::forward<Use>(use)); }
};

/// A tensor of a lease, which keeps it.
struct OnDevice {
    SharedLease lease;
    std::string name;

    template <class Use> auto with(Use&& use) const {
        return lease->with([&](const std::shared_ptr<Lease>& held) { return use(held, (*held)[name]); });
    }
};

/// Returns a view of a tensor that the host can read. It keeps the lease.
std::optional<TensorView> host_view(const OnDevice& tensor) {
    return tensor.with([](const std::shared_ptr<Lease>& lease, const DeviceTensor& one) -> std::optional<TensorView> {
        if (one.nbytes() == 0) return TensorView::row_major(one.dtype(), {}, one.shape());
        if (one.host_bytes().empty()) return std::nullopt;
        return TensorView::row_major(one.dtype(), {one.host_bytes(), lease, false}, one.shape());
    });
}

nb::object exported(const OnDevice& tensor, NativeStream consumer, bool versioned, dlpack::Float4 float4) {
    return tensor.with([&](const std::shared_ptr<Lease>& lease, const DeviceTensor& one) {
        if (versioned)
            return capsule_of(without_gil([&] { return dlpack::export_versioned(lease, one, consumer, float4); }));
        return capsule_of(without_gil([&] { return dlpack::export_unversioned(lease, one, consumer, float4); }));
    });
}

/// Returns (kind, number) as DLPack has them.
nb::tuple dlpack_device(const OnDevice& tensor) {
    const std::string& name = tensor.lease->device()->name();
    const std::size_t colon = name.find(':');
    const int number = colon == std::string::npos ? 0 : std::stoi(name.substr(colon + 1));
    if (name.starts_with("cuda")) return nb::make_tuple(static_cast<int>(dlpack::DeviceType::cuda), number);
    if (name.starts_with("opencl")) return nb::make_tuple(static_cast<int>(dlpack::DeviceType::opencl), number);
    return nb::make_tuple(static_cast<int>(dlpack::DeviceType::cpu), 0);
}

nb::object dlpack_of_device(const OnDevice& tensor, nb::handle stream, nb::handle max_version, nb::handle device,
                            nb::handle copy) {
    if (copy.is(nb::handle(Py_True))) raise(Error(Errc::no_dlpack, "a tensor of a lease is shared, not copied"));
    if (!device.is_none() && !device.equal(dlpack_device(tensor)))
        raise(Error(Errc::no_dlpack, "the tensor is on the device " + tensor.lease->device()->name()));
    const NativeStream::Kind kind = tensor.lease->device()->stream_kind();
    NativeStream consumer;
    // Without a number, CUDA's is the default stream; -1 asks for no order, and gets the finished copies.
    if (kind == NativeStream::Kind::cuda && stream.is_none()) consumer = NativeStream::cuda(nullptr);
    else if (!stream.is_none() && !stream.equal(nb::int_(-1))) consumer = stream_from(stream, kind);
    const bool versioned = !max_version.is_none() && nb::cast<int>(nb::object(max_version[0])) >= 1;
    return exported(tensor, consumer, versioned, dlpack::Float4::elements);
}

/// Returns the tensor as torch.Tensor on its device, ordered after the copies in torch's current stream.
nb::object torch_of_device(const OnDevice& tensor) {
    static Imported from_dlpack{"torch", "from_dlpack"};
    if (tensor.lease->device()->stream_kind() != NativeStream::Kind::cuda)
        if (const auto view = host_view(tensor)) return to_torch(*view);
    const bool pairs = tensor.with([](const auto&, const DeviceTensor& one) { return one.dtype() == Dtype::f4; });
    NativeStream consumer;
    if (tensor.lease->device()->stream_kind() == NativeStream::Kind::cuda) {
        const nb::object stream =
            nb::module_::import_("torch.cuda").attr("current_stream")(nb::object(dlpack_device(tensor)[1]));
        consumer = stream_from(stream, NativeStream::Kind::cuda);
    }
    return from_dlpack.get()(
        exported(tensor, consumer, true, pairs ? dlpack::Float4::pairs : dlpack::Float4::elements));
}

nb::object numpy_of_device(const OnDevice& tensor) {
    if (const auto view = host_view(tensor)) return to_numpy(*view);
    raise(std::move(Error(Errc::no_dlpack, "NumPy cannot read memory of " + tensor.lease->device()->name())
                        .with_tensor(tensor.name)
                        .with_hint("use .torch()")));
}

nb::object address_of(const OnDevice& tensor) {
    return tensor.with([](const auto&, const DeviceTensor& one) {
        return one.address() == nullptr ? nb::none() : nb::cast(reinterpret_cast<std::uintptr_t>(one.address()));
    });
}

std::string description(const OnDevice& tensor) {
    if (tensor.lease->ended()) return "<safemap.DeviceTensor " + printable(tensor.name, 200) + ", ended>";
    return tensor.with([&](const auto&, const DeviceTensor& one) {
        return "<safemap.DeviceTensor " + printable(tensor.name, 200) + ' ' + std::string(name(one.dtype())) + ' ' +
               to_string(one.shape()) + " on " + tensor.lease->device()->name() + '>';
    });
}

std::string description(const Held& self) {
    if (self.leased->ended()) return "<safemap.Lease, ended>";
    const std::size_t tensors = self.with([](const std::shared_ptr<Lease>& lease) { return lease->tensors().size(); });
    return "<safemap.Lease of " + std::to_string(tensors) + (tensors == 1 ? " tensor on " : " tensors on ") +
           self.leased->device()->name() + '>';
}

nb::list lease_keys(const Held& self) {
    return self.with([](const std::shared_ptr<Lease>& lease) {
        nb::list names;
        for (const DeviceTensor& one : lease->tensors()) names.append(to_python(one.name()));
        return names;
    });
}

OnDevice lease_item(const Held& self, nb::handle key) {
    OnDevice tensor{self.leased, text_from(key, "the name of a tensor")};
    tensor.with([](const auto&, const DeviceTensor&) {});
    return tensor;
}

void lease_wait(const Held& self, nb::handle stream) {
    const NativeStream native = stream_from(stream, self.leased->device()->stream_kind());
    self.with([&](const std::shared_ptr<Lease>& lease) { without_gil([&] { lease->wait(native); }); });
}

/// The names and places of a bundle. Keeps the bundle.
struct Bundled {
    Bundle bundle;
};

/// An uploader. Its end waits for reads, which may need the GIL.
class Uploads {
public:
    Uploads(std::shared_ptr<Device> device, Checkpoint checkpoint, const UploadOptions& options)
        : device_(std::move(device)),
          checkpoint_(std::move(checkpoint)),
          uploader_(std::make_shared<Uploader>(device_, checkpoint_, options)) {
        all().insert(this);
    }
    ~Uploads() {
        all().erase(this);
        close();
    }
    Uploads(const Uploads&) = delete;
    Uploads& operator=(const Uploads&) = delete;

    /// Returns the uploader, which a thread keeps while it uses it. Raises invalid_argument after close().
    std::shared_ptr<Uploader> get() const {
        if (!uploader_) refuse_call("the uploader is closed");
        return uploader_;
    }
    void close() {
        bundles_.clear();
        if (uploader_) let_go(std::exchange(uploader_, nullptr));
    }
    Held leased(Lease lease) const { return {std::make_shared<Leased>(std::move(lease), device_)}; }
    const std::shared_ptr<Device>& device() const noexcept { return device_; }
    bool closed() const noexcept { return uploader_ == nullptr; }

    /// The uploaders of the process. Guarded by the GIL.
    static std::set<Uploads*>& all() {
        static std::set<Uploads*> uploads;
        return uploads;
    }

    /// Returns the bundle of a Bundle, a name, a prefix, a pattern, a list of names, or a list of LazyTensors. Bundles
    /// of texts are kept, so that their tensors stay on the device.
    Bundle bundle(nb::handle what) {
        if (nb::isinstance<Bundled>(what)) return nb::cast<const Bundled&>(what).bundle;
        if (nb::isinstance<Tensor>(what)) return made_of({nb::cast<const Tensor&>(what).lazy});
        if (PyUnicode_Check(what.ptr())) return named(text_from(what, "a name"));
        if (PyBytes_Check(what.ptr()) || !nb::hasattr(what, "__iter__"))
            wrong_type("a name, a prefix, a pattern, a list of names or LazyTensors, or a bundle", what);
        return listed(what);
    }

private:
    Bundle named(const std::string& text) {
        const auto uploader = get();
        const auto known = bundles_.find(text);
        if (known != bundles_.end()) return known->second;
        const Bundle made = without_gil([&] {
            if (checkpoint_.find(text) != nullptr) return uploader->bundle(text);
            if (text.find_first_of("*?[") != text.npos) return uploader->bundle(Selection::glob(text));
            return uploader->bundle(Selection::prefix(text));
        });
        if (made.size() == 0)
            raise(std::move(Error(Errc::tensor_not_found, "no tensor has the name or prefix '" + printable(text) + "'")
                                .with_tensor(text)));
        bundles_.emplace(text, made);
        return made;
    }

    Bundle listed(nb::handle list) {
        std::vector<LazyTensor> tensors;
        for (const nb::handle one : nb::iter(list)) {
            if (nb::isinstance<Tensor>(one)) tensors.push_back(nb::cast<const Tensor&>(one).lazy);
            else {
                const std::string name = text_from(one, "the name of a tensor");
                tensors.push_back(checkpoint_[name].renamed(name));
            }
        }
        return made_of(std::move(tensors));
    }

    Bundle made_of(std::vector<LazyTensor> tensors) const {
        const auto uploader = get();
        return without_gil([&] { return uploader->bundle(tensors); });
    }

    std::shared_ptr<Device> device_;
    Checkpoint checkpoint_;
    std::shared_ptr<Uploader> uploader_;
    std::map<std::string, Bundle, std::less<>> bundles_;
};

/// Returns the name of a device: of a str, or of a torch.device. torch calls the host "cpu".
std::string device_from(nb::handle value) {
    const bool torch_device = nb::hasattr(value, "type") && nb::hasattr(value, "index");
    if (!PyUnicode_Check(value.ptr()) && !torch_device) wrong_type("a device such as \"cuda:0\"", value);
    const std::string name = text_from(nb::str(value), "a device");
    return name == "cpu" ? "host" : name;
}

void make_uploader(Uploads* self, nb::handle checkpoint, nb::handle device, nb::handle budget, nb::handle staging_bytes,
                   nb::handle host_bytes, unsigned readers, bool direct_reads, bool keep_addresses) {
    const auto size = [](nb::handle value) { return value.is_none() ? 0 : size_from(value); };
    const UploadOptions options{.device_budget = size(budget),
                                .staging_bytes = size(staging_bytes),
                                .host_bytes = size(host_bytes),
                                .readers = readers,
                                .direct_reads = direct_reads,
                                .keep_addresses = keep_addresses};
    const std::string device_name = device_from(device);
    Checkpoint opened = checkpoint_from(checkpoint);
    auto opened_device = without_gil([&] { return Device::open(device_name); });
    new (self) Uploads(std::move(opened_device), std::move(opened), options);
}

Held acquire(Uploads& self, nb::handle what, nb::handle stream, nb::handle deadline, int priority,
             nb::object progress) {
    const auto uploader = self.get();
    const Bundle bundle = self.bundle(what);
    const NativeStream native = stream_from(stream, self.device()->stream_kind());
    const Request request = request_from(deadline, priority, std::move(progress));
    return self.leased(without_gil([&] { return uploader->acquire(bundle, native, request); }));
}

std::optional<Held> try_acquire(Uploads& self, nb::handle what, nb::handle stream) {
    const auto uploader = self.get();
    const Bundle bundle = self.bundle(what);
    const NativeStream native = stream_from(stream, self.device()->stream_kind());
    std::optional<Lease> lease = without_gil([&] { return uploader->try_acquire(bundle, native); });
    if (!lease) return std::nullopt;
    return self.leased(std::move(*lease));
}

Held request(Uploads& self, nb::handle what, nb::handle deadline, int priority, nb::object progress) {
    const auto uploader = self.get();
    const Bundle bundle = self.bundle(what);
    const Request wanted = request_from(deadline, priority, std::move(progress));
    return self.leased(without_gil([&] { return uploader->request(bundle, wanted); }));
}

std::vector<Bundle> bundles_of(Uploads& self, const nb::args& what) {
    std::vector<Bundle> bundles;
    for (const nb::handle one : what) bundles.push_back(self.bundle(one));
    return bundles;
}

void prefetch_bundles(Uploads& self, const nb::args& what) {
    const auto uploader = self.get();
    const std::vector<Bundle> bundles = bundles_of(self, what);
    without_gil([&] { uploader->prefetch(bundles); });
}

void evict_bundle(Uploads& self, nb::handle what) {
    const auto uploader = self.get();
    const Bundle bundle = self.bundle(what);
    without_gil([&] { uploader->evict(bundle); });
}

nb::object stats_of(const Uploads& self) {
    const UploadStats stats = without_gil([up = self.get()] { return up->stats(); });
    const auto seconds = [](std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); };
    return record("UploadStats", stats.uploaded_bytes, stats.bytes_from_host, stats.resident_bytes,
                  stats.peak_device_bytes, stats.peak_staging_bytes, stats.evictions, seconds(stats.stalled),
                  stats.bytes_pread, stats.bytes_direct, seconds(stats.time_pread), seconds(stats.time_direct));
}

/// An order of bundles. It is for one thread at a time, so each use takes the lock.
class Order {
public:
    Order(UploadOrder order, std::shared_ptr<Device> device, bool once)
        : order_(std::move(order)), device_(std::move(device)), once_(once), left_(order_.size()) {}
    ~Order() { let_go(std::move(order_)); }
    Order(const Order&) = delete;
    Order& operator=(const Order&) = delete;

    Held next(nb::handle stream, nb::handle deadline, nb::object progress) {
        const NativeStream native = stream_from(stream, device_->stream_kind());
        const Request request = request_from(deadline, 0, std::move(progress));
        const Turn turn(turns_);
        turn.require_first("progress of an order must not use the order");
        Lease lease = without_gil([&] { return order_.next(native, request); });
        return {std::make_shared<Leased>(std::move(lease), device_)};
    }
    /// Begins a pass of a loop.
    void begin_pass() { left_ = once_ ? order_.size() - order_.upcoming() : order_.size(); }
    Held step() {
        if (left_ == 0) throw nb::stop_iteration();
        Held lease = next(nb::none(), nb::none(), nb::none());
        --left_;
        return lease;
    }
    void reset() {
        const Turn turn(turns_);
        turn.require_first("progress of an order must not use the order");
        without_gil([&] { order_.reset(); });
    }
    void end() {
        const Turn turn(turns_);
        turn.require_first("progress of an order must not use the order");
        without_gil([&] { order_.end(); });
        left_ = 0;
    }
    std::size_t size() const noexcept { return order_.size(); }
    std::size_t upcoming() const noexcept { return order_.upcoming(); }

private:
    Turns turns_;
    UploadOrder order_;
    std::shared_ptr<Device> device_;
    bool once_;
    std::size_t left_;
};

std::unique_ptr<Order> follow(Uploads& self, nb::handle bundles, bool once) {
    const auto uploader = self.get();
    std::vector<Bundle> steps;
    if (PyUnicode_Check(bundles.ptr()) || !nb::hasattr(bundles, "__iter__")) wrong_type("a list of bundles", bundles);
    for (const nb::handle one : nb::iter(bundles)) steps.push_back(self.bundle(one));
    UploadOrder order = without_gil([&] { return once ? uploader->follow_once(steps) : uploader->follow(steps); });
    return std::make_unique<Order>(std::move(order), self.device(), once);
}

std::string description(const Uploads& self) {
    return "<safemap.Uploader to " + self.device()->name() + (self.closed() ? ", closed>" : ">");
}

void bind_tensors_of_devices(nb::module_& module) {
    nb::class_<OnDevice>(module, "DeviceTensor", nb::is_final(),
                         "A tensor on a device. It keeps its lease, and raises SafemapError once that was released.")
        .def_prop_ro(
            "name", [](const OnDevice& self) { return to_python(self.name); }, nb::sig("def name(self, /) -> str"))
        .def_prop_ro(
            "dtype",
            [](const OnDevice& self) {
                return self.with([](const auto&, const DeviceTensor& one) { return to_python(name(one.dtype())); });
            },
            nb::sig("def dtype(self, /) -> str"))
        .def_prop_ro(
            "shape",
            [](const OnDevice& self) {
                return self.with([](const auto&, const DeviceTensor& one) { return to_python(one.shape()); });
            },
            nb::sig("def shape(self, /) -> tuple[int, ...]"))
        .def_prop_ro(
            "nbytes",
            [](const OnDevice& self) {
                return self.with([](const auto&, const DeviceTensor& one) { return nb::cast(one.nbytes()); });
            },
            nb::sig("def nbytes(self, /) -> int"))
        .def_prop_ro(
            "device", [](const OnDevice& self) { return to_python(self.lease->device()->name()); },
            nb::sig("def device(self, /) -> str"))
        .def_prop_ro("address", address_of, nb::sig("def address(self, /) -> int | None"),
                     "The address on the device; None where memory has no address (OpenCL).")
        .def("torch", torch_of_device, nb::sig("def torch(self) -> torch.Tensor"),
             R"doc(Returns the value as torch.Tensor on its device, without a copy.

The lease lasts as long as the tensor, whatever release() says. Its memory is shared: do not write to it. On CUDA, work
of torch's current stream comes after the copies.)doc")
        .def(
            "numpy", numpy_of_device, nb::sig("def numpy(self) -> numpy.ndarray"),
            "Returns the value as numpy.ndarray, which is read-only and keeps the lease. Only where the host can read.")
        .def(
            "digest",
            [](const OnDevice& self) {
                return self.with([&](const auto&, const DeviceTensor& one) {
                    return to_python(without_gil([&] { return digest(*self.lease->device(), one); }));
                });
            },
            nb::sig("def digest(self) -> str"), "Returns the XXH3-128 digest of the bytes on the device.")
        .def("__dlpack__", dlpack_of_device, nb::kw_only(), nb::arg("stream") = nb::none(),
             nb::arg("max_version") = nb::none(), nb::arg("dl_device") = nb::none(), nb::arg("copy") = nb::none(),
             nb::sig("def __dlpack__(self, *, stream: object = None, max_version: tuple[int, int] | None = None, "
                     "dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> object"))
        .def("__dlpack_device__", dlpack_device, nb::sig("def __dlpack_device__(self) -> tuple[int, int]"))
        .def("__repr__", [](const OnDevice& self) { return description(self); });
}

void bind_leases(nb::module_& module) {
    nb::class_<Bundled>(module, "Bundle", nb::is_final(),
                        "Tensors that come to a device and leave it together. Made by Uploader.bundle().")
        .def("__len__", [](const Bundled& self) { return self.bundle.size(); })
        .def_prop_ro(
            "device_bytes", [](const Bundled& self) { return self.bundle.device_bytes(); },
            nb::sig("def device_bytes(self, /) -> int"), "The device memory that a lease holds.")
        .def(
            "keys",
            [](const Bundled& self) {
                nb::list names;
                for (const BundleTensor& one : self.bundle.tensors()) names.append(to_python(one.name));
                return names;
            },
            nb::sig("def keys(self) -> list[str]"));
    nb::class_<Held>(module, "Lease", nb::is_final(),
                     R"doc(The tensors of a bundle, which stay on the device until it is released.

It is a context manager, and a mapping of names to DeviceTensors. Tensors of torch and NumPy that were made of it share
it: memory is not used again before they are gone.)doc")
        .def("keys", lease_keys, nb::sig("def keys(self) -> list[str]"))
        .def(
            "__iter__", [](const Held& self) { return nb::iter(lease_keys(self)); },
            nb::sig("def __iter__(self) -> collections.abc.Iterator[str]"))
        .def("__len__",
             [](const Held& self) {
                 return self.with([](const std::shared_ptr<Lease>& lease) { return lease->tensors().size(); });
             })
        .def("__contains__",
             [](const Held& self, nb::handle key) {
                 const int found = PySequence_Contains(lease_keys(self).ptr(), key.ptr());
                 if (found < 0) throw nb::python_error();
                 return found == 1;
             })
        .def("__getitem__", lease_item, nb::sig("def __getitem__(self, name: str, /) -> DeviceTensor"))
        .def_prop_ro(
            "ready",
            [](const Held& self) {
                return self.with(
                    [](const std::shared_ptr<Lease>& lease) { return without_gil([&] { return lease->ready(); }); });
            },
            nb::sig("def ready(self, /) -> bool"), "False while the tensors of a request() are on their way.")
        .def("wait", lease_wait, nb::arg("stream") = nb::none(),
             nb::sig("def wait(self, stream: object = None) -> None"),
             "Waits for the tensors of a request(). Raises what acquire() would.")
        .def(
            "release", [](const Held& self, nb::handle stream) { self.leased->end(stream); },
            nb::arg("stream") = nb::none(), nb::sig("def release(self, stream: object = None) -> None"),
            "Ends the lease; with a stream, when the work that is in it is done.")
        .def(
            "__enter__", [](nb::object self) { return self; }, nb::sig("def __enter__(self) -> Lease"))
        .def(
            "__exit__", [](const Held& self, const nb::args&) { self.leased->end(nb::none()); },
            nb::sig("def __exit__(self, *args: object) -> None"))
        .def("__repr__", [](const Held& self) { return description(self); });
    nb::class_<Order>(module, "UploadOrder", nb::is_final(),
                      R"doc(An order in which bundles are used again and again. Iterating gives the leases of one pass.

Release a lease before the step after the next one: until then, its memory is not free.)doc")
        .def("next", &Order::next, nb::arg("stream") = nb::none(), nb::kw_only(), nb::arg("deadline") = nb::none(),
             nb::arg("progress") = nb::none(),
             nb::sig("def next(self, stream: object = None, *, deadline: float | None = None, "
                     "progress: typing.Any = None) -> Lease"),
             "Waits for the bundle of the next step, and returns a lease of it.")
        .def("__len__", &Order::size)
        .def_prop_ro("upcoming", &Order::upcoming, "The number of the step that comes next.")
        .def(
            "__iter__",
            [](nb::object self) {
                nb::cast<Order&>(self).begin_pass();
                return self;
            },
            nb::sig("def __iter__(self) -> UploadOrder"))
        .def("__next__", &Order::step, nb::sig("def __next__(self) -> Lease"))
        .def("reset", &Order::reset, "Goes back to the first step.")
        .def("end", &Order::end, "Ends the order, so that the uploader can follow another one.")
        .def(
            "__enter__", [](nb::object self) { return self; }, nb::sig("def __enter__(self) -> UploadOrder"))
        .def(
            "__exit__", [](Order& self, const nb::args&) { self.end(); },
            nb::sig("def __exit__(self, *args: object) -> None"));
}

}  // namespace

void close_uploaders() {
    while (!Uploads::all().empty()) {
        Uploads* const one = *Uploads::all().begin();
        Uploads::all().erase(one);
        one->close();
    }
}

void bind_device(nb::module_& module) {
    bind_tensors_of_devices(module);
    bind_leases(module);
    nb::class_<Uploads>(
        module, "Uploader", nb::is_final(),
        R"doc(Brings tensors of a checkpoint to a device on demand, and evicts them to stay within a budget.

`checkpoint` is what safemap.save() takes. `device` is "host" (or "cpu"), "cuda:N" or "opencl:N", or a torch.device.
`budget` is the device memory that it may use, bytes or a text such as "8GB"; None takes nine tenths of what is free.
`host_bytes` keeps evicted weights in memory of the host. Options are those of UploadOptions in C++.

Methods take a name, a prefix ("model.layers.1"), a pattern, a list of names or LazyTensors, or a bundle().

Example:
    with safemap.Uploader("model/", "cuda:0", budget="8GB") as uploader:
        for lease in uploader.follow([f"model.layers.{i}" for i in range(80)]):
            weight = lease[lease.keys()[0]].torch())doc")
        .def("__init__", make_uploader, nb::arg("checkpoint").none(), nb::arg("device").none() = "host", nb::kw_only(),
             nb::arg("budget") = nb::none(), nb::arg("staging_bytes") = nb::none(), nb::arg("host_bytes") = nb::none(),
             nb::arg("readers") = 0U, nb::arg("direct_reads") = true, nb::arg("keep_addresses") = false,
             nb::sig("def __init__(self, checkpoint: typing.Any, device: str | torch.device = \"host\", *, "
                     "budget: int | str | None = None, staging_bytes: int | str | None = None, "
                     "host_bytes: int | str | None = None, readers: int = 0, direct_reads: bool = True, "
                     "keep_addresses: bool = False) -> None"))
        .def(
            "bundle", [](Uploads& self, nb::handle what) { return Bundled{self.bundle(what)}; }, nb::arg("what"),
            nb::sig("def bundle(self, what: typing.Any) -> Bundle"),
            "Makes a bundle, which is found at once by later calls. Its tensors stay as long as it is kept.")
        .def("acquire", acquire, nb::arg("what"), nb::kw_only(), nb::arg("stream") = nb::none(),
             nb::arg("deadline") = nb::none(), nb::arg("priority") = 0, nb::arg("progress") = nb::none(),
             nb::sig("def acquire(self, what: typing.Any, *, stream: object = None, deadline: float | None = None, "
                     "priority: int = 0, progress: typing.Any = None) -> Lease"),
             R"doc(Leases tensors, and uploads those that are not on the device.

With a stream (an int or a torch.cuda.Stream), later work of the stream comes after the copies. `deadline` is in
seconds: TimeoutError after that, while the upload goes on. Raises SafemapError, code `budget_exceeded`, if leases leave
no room.)doc")
        .def("try_acquire", try_acquire, nb::arg("what"), nb::kw_only(), nb::arg("stream") = nb::none(),
             nb::sig("def try_acquire(self, what: typing.Any, *, stream: object = None) -> Lease | None"),
             "Leases tensors if they are on the device; returns None otherwise.")
        .def("request", request, nb::arg("what"), nb::kw_only(), nb::arg("deadline") = nb::none(),
             nb::arg("priority") = 0, nb::arg("progress") = nb::none(),
             nb::sig("def request(self, what: typing.Any, *, deadline: float | None = None, priority: int = 0, "
                     "progress: typing.Any = None) -> Lease"),
             "Starts to acquire tensors, and returns at once. Lease.wait() waits for them.")
        .def("prefetch", prefetch_bundles, nb::arg("what"), nb::sig("def prefetch(self, *what: typing.Any) -> None"),
             "Starts to upload tensors in this order, as far as there is room, and returns at once.")
        .def("follow", follow, nb::arg("bundles"), nb::kw_only(), nb::arg("once") = false,
             nb::sig("def follow(self, bundles: collections.abc.Iterable[typing.Any], *, once: bool = False) "
                     "-> UploadOrder"),
             "Follows an order in which bundles are used again and again, or once: what comes next is uploaded ahead.")
        .def("evict", evict_bundle, nb::arg("what"), nb::sig("def evict(self, what: typing.Any) -> None"),
             "Gives memory back to the device, unless a lease holds it.")
        .def(
            "sleep", [](Uploads& self) { return without_gil([up = self.get()] { return up->sleep(); }); },
            nb::sig("def sleep(self) -> int"),
            "Gives all memory without a lease back to the device. Returns how many bytes leases keep.")
        .def(
            "wake", [](Uploads& self) { without_gil([up = self.get()] { up->wake(); }); },
            "Starts to upload what sleep() took from the device.")
        .def("stats", stats_of, nb::sig("def stats(self) -> safemap._records.UploadStats"),
             "Returns counters; times are in seconds.")
        .def_prop_ro(
            "device", [](const Uploads& self) { return to_python(self.device()->name()); },
            nb::sig("def device(self, /) -> str"))
        .def("close", &Uploads::close, "Stops uploads. Leases stay valid.")
        .def(
            "__enter__", [](nb::object self) { return self; }, nb::sig("def __enter__(self) -> Uploader"))
        .def(
            "__exit__", [](Uploads& self, const nb::args&) { self.close(); },
            nb::sig("def __exit__(self, *args: object) -> None"))
        .def("__repr__", [](const Uploads& self) { return description(self); });
}

}  // namespace safemap::python
