// A function or class of another package, imported when it is first needed.
#pragma once

#include <nanobind/nanobind.h>

namespace safemap::python {

/// Kept for the life of the process, because Python may be gone when static objects end.
class Imported {
public:
    constexpr Imported(const char* module, const char* attribute) : module_(module), attribute_(attribute) {}
    nanobind::handle get() {
        if (object_ == nullptr)
            object_ = nanobind::object(nanobind::module_::import_(module_).attr(attribute_)).release().ptr();
        return object_;
    }

private:
    const char* module_;
    const char* attribute_;
    PyObject* object_ = nullptr;
};

}  // namespace safemap::python
