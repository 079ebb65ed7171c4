// UploadPlan: the order in which a program will use its bundles.
#pragma once

#include <safemap/bundle.hpp>

#include <vector>

namespace safemap::SAFEMAP_ABI {

/// The order in which bundles will be acquired, as far as the program knows. A bundle may be in it several times.
/// Uploader::follow() makes it a standing order: it decides what is uploaded ahead, what stays on the device, and what
/// makes room.
///
/// Example:
///     safemap::UploadPlan plan{.order = bundles, .cyclic = true};  // each token passes all layers in turn
///     uploader.follow(plan);
struct UploadPlan {
    std::vector<Bundle> order = {};
    bool cyclic = true;  ///< after the last one comes the first
};

}  // namespace safemap::SAFEMAP_ABI
