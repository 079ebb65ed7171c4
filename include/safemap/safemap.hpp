// Includes everything that most programs need to open, load and save checkpoints. safemap/advanced/ has the rest.
#pragma once

#include <safemap/api.hpp>
#include <safemap/bundle.hpp>
#include <safemap/bytes.hpp>
#include <safemap/checkpoint.hpp>
#include <safemap/device.hpp>
#include <safemap/diff.hpp>
#include <safemap/digest.hpp>
#include <safemap/dtype.hpp>
#include <safemap/elements.hpp>
#include <safemap/error.hpp>
#include <safemap/float_types.hpp>
#include <safemap/lazy_tensor.hpp>
#include <safemap/open_options.hpp>
#include <safemap/plan.hpp>
#include <safemap/progress.hpp>
#include <safemap/save.hpp>
#include <safemap/selection.hpp>
#include <safemap/shape.hpp>
#include <safemap/sink.hpp>
#include <safemap/source.hpp>
#include <safemap/state_tree.hpp>
#include <safemap/tensor_view.hpp>
#include <safemap/training_layout.hpp>
#include <safemap/uploader.hpp>
#include <safemap/verify.hpp>
