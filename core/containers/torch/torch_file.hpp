#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/data_layout.hpp"
#include "core/base/files/file.hpp"
#include "core/base/files/file_range.hpp"
#include "core/base/files/file_segment.hpp"
#include "core/containers/file_tensor.hpp"
#include "core/containers/torch/pickle/pickle.hpp"
#include "core/containers/torch/zip/zip_layout.hpp"

namespace reshard {

/// The place of a storage's bytes.
struct StorageRecord {
  std::uint64_t offset_bytes = 0;  ///< from the start of the file
  std::uint64_t size_bytes = 0;
  std::optional<std::uint32_t> crc32;  ///< zip container only
};

/// The content of a torch.save file, read without executing code and without payloads.
struct TorchFile {
  enum class Container { zip, legacy };
  Container container = Container::zip;
  std::string archive =
      {};  ///< the folder in the archive; "" of a legacy file. torch.save(path) names it
           ///< after the file (its stem), torch.save to a stream "archive"
  pickle::Document document;
  std::unordered_map<std::string, StorageRecord> storages;  ///< by storage key
};

/// Reads the container's directory and pickle. The torch file may be a part of a larger one:
/// offsets in the result count from the start of the file, those in error sentences from the start
/// of the part, which the sentence names. Every tensor of the document is checked to lie inside its
/// storage, every storage inside the file. Damage, compression, encryption, big-endian data and
/// hostile input are Errors of kind source with path, place and both values.
TorchFile read_torch_file(FileRange const& file);

/// A tensor of the document as a FileTensor (its name is the caller's).
FileTensor file_tensor(TorchFile const& file, pickle::TensorRef const& tensor, std::string name);

/// The complete byte layout of a torch zip file, known before any payload: so any rank may write
/// any range of any storage.
struct TorchFilePlan {
  std::string archive;  ///< folder name in the archive: the file's stem, as torch.save(path) does
  std::string pickle_bytes;         ///< data.pkl
  std::vector<ZipRecord> storages;  ///< one per tensor of the document, in order of
                                    ///< Document::tensors (in the file: in order of the pickle)
  std::vector<ZipRecord> small_records;  ///< data.pkl, version, byteorder, …: written by finish
  std::uint64_t size_bytes = 0;          ///< of the file
  std::uint64_t alignment_bytes = zip::usual_alignment_bytes;  ///< of all payloads
  std::string alignment_text = "64";                           ///< the same as text in the file
  friend bool operator==(TorchFilePlan const&, TorchFilePlan const&) = default;
};

/// Lays out a file for `document`, byte for byte as torch.save does. Every tensor gets a storage of
/// its own, row-major, whose key is its number in the order of the pickle. Payloads start at
/// multiples of 64; with DataLayout::for_clones at multiples of clone_block_bytes, as torch.save
/// does with that storage_alignment, unless too few tensors are large enough to be worth it.
TorchFilePlan plan_torch_file(pickle::Document& document, std::string_view archive,
                              DataLayout data_layout = DataLayout::usual);

/// All bytes but the storages' payloads: headers, small records, checksums, central directory, in
/// order and without overlap. `crc32s` has one CRC-32 per storage. Segments and payloads together
/// are the complete file; offsets count from its start.
std::vector<FileSegment> render_torch_file(TorchFilePlan const& plan,
                                           std::span<std::uint32_t const> crc32s);

/// Writes the segments. `base_offset_bytes` is where the torch file begins in `file`. The result
/// does not depend on the order of writes; no times are stored.
void finish_torch_file(File const& file, TorchFilePlan const& plan,
                       std::span<std::uint32_t const> crc32s, std::uint64_t base_offset_bytes = 0);

}  // namespace reshard
