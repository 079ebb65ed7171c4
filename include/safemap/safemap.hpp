// All of safemap.
#pragma once

#include <safemap/api.hpp>
#include <safemap/bytes.hpp>
#include <safemap/checkpoint.hpp>
#include <safemap/device.hpp>
#include <safemap/diff.hpp>
#include <safemap/digest.hpp>
#include <safemap/dlpack.hpp>
#include <safemap/dtype.hpp>
#include <safemap/edit.hpp>
#include <safemap/elements.hpp>
#include <safemap/error.hpp>
#include <safemap/file.hpp>
#include <safemap/float_types.hpp>
#include <safemap/lazy_tensor.hpp>
#include <safemap/progress.hpp>
#include <safemap/save.hpp>
#include <safemap/selection.hpp>
#include <safemap/shape.hpp>
#include <safemap/shard_writer.hpp>
#include <safemap/source.hpp>
#include <safemap/state_tree.hpp>
#include <safemap/structure.hpp>
#include <safemap/tensor_view.hpp>
#include <safemap/uploader.hpp>
#include <safemap/verify.hpp>
