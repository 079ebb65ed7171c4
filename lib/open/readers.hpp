// The readers. open() gives them a sink that throws, verify() one that collects.
#pragma once

#include "base/faults.hpp"
#include "base/folder.hpp"
#include "state/contents.hpp"
#include "state/folder_shape.hpp"

#include <safemap/advanced/file.hpp>

#include <filesystem>
#include <memory>
#include <span>

namespace safemap::SAFEMAP_ABI::open {

using state::Contents;
using state::FileNames;
using state::FolderNames;
using state::FolderShape;
using state::Joined;
using state::ShapeKind;

/// One file, told by its content, or by a name in ".safetensors".
Contents read_file(const std::shared_ptr<const Source>& source, const OpenOptions& options, FaultSink& faults);
/// The same of a file that is safetensors, for the table of formats.
Contents read_safetensors(const std::shared_ptr<const Source>& source, const OpenOptions& options, FaultSink& faults);
/// Files that are one checkpoint without an index, in this order. duplicate_name where two hold the same name.
Contents read_files(std::span<const std::shared_ptr<const Source>> sources, const OpenOptions& options,
                    FaultSink& faults);
/// Files of several ranks, in folders of `folder` that their names begin with. Nothing is merged.
Contents read_ranks(const Folder& folder, const FileNames& files, const OpenOptions& options, FaultSink& faults);
/// The shards of an index, which lie in `folder`.
Contents read_shards(const Folder& folder, const std::shared_ptr<const Source>& index, const OpenOptions& options,
                     FaultSink& faults);
/// A folder whose checkpoint has been found: the folder itself, or one in it.
struct Located {
    std::shared_ptr<const Folder> folder;
    FolderNames names = {};
    FolderShape shape = {};
    FileNames notes = {};
};

/// Finds the checkpoint of a folder by names. Throws what a damaged pointer deserves (bad_tag), and no fault of the
/// checkpoint.
Located locate(std::shared_ptr<const Folder> folder);
/// Reads the checkpoint. Throws unsupported_layout and the like if there is no reader for its shape.
Contents read_located(const Located& found, const OpenOptions& options, FaultSink& faults);
/// How the files of a path are mapped.
Mapping mapping_of(Access access);
/// A file, an index or a folder of the file system.
Contents read_path(const std::filesystem::path& path, const OpenOptions& options, FaultSink& faults);
/// Returns whether `path` is a folder with a checkpoint of its optimizer in it, as SaveOptions::folders has it.
bool has_optimizer(const std::filesystem::path& path);

}  // namespace safemap::SAFEMAP_ABI::open
