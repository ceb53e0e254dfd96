#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/file.hpp"
#include "core/formats/file_tensor.hpp"
#include "core/formats/torch_zip/pickle.hpp"

namespace reshard {

/// Where the bytes of a storage lie.
struct StorageRecord {
  std::uint64_t offset_bytes = 0;  ///< from the start of the file
  std::uint64_t size_bytes = 0;
  std::optional<std::uint32_t> crc32;  ///< zip container only
};

/// What torch.save wrote, read without executing and without reading payloads.
struct TorchFile {
  enum class Container { zip, legacy };
  Container container = Container::zip;
  pickle::Document document;
  std::unordered_map<std::string, StorageRecord> storages;  ///< by storage key
};

/// Reads the container's directory and pickle. Every tensor of the document is checked to lie inside its storage, every storage inside the file.
/// Damage, compression, encryption, big-endian data and hostile input are Errors of kind source with path, place and both values.
TorchFile read_torch_file(File const& file);

/// A tensor of the document as a FileTensor (its name is the caller's).
FileTensor file_tensor(TorchFile const& file, pickle::TensorRef const& tensor, std::string name);

/// A record of a zip file to be written: where its payload goes.
struct ZipRecord {
  std::string name;  ///< in the archive, folder included
  std::uint64_t header_offset_bytes = 0;
  std::uint64_t payload_offset_bytes = 0;
  std::uint64_t size_bytes = 0;
};

/// The complete byte layout of a torch zip file, known before any payload: so any rank may write any range of any storage.
struct TorchFilePlan {
  std::string archive;                   ///< folder name in the archive: the file's stem, as torch.save(path) does
  std::string pickle_bytes;              ///< data.pkl
  std::vector<ZipRecord> storages;       ///< one per tensor of the document, in order of Document::tensors
  std::vector<ZipRecord> small_records;  ///< data.pkl, version, byteorder, …: written by finish
  std::uint64_t size_bytes = 0;          ///< of the whole file
};

/// Lays out a file for `document`, whose tensors were made by add_tensor (each its own contiguous storage). Payloads start at multiples of 64.
TorchFilePlan plan_torch_file(pickle::Document& document, std::string_view archive);

/// Writes everything but the storages' payloads: local headers, small records, central directory. `crc32` holds one CRC-32 per storage.
/// The result is the same whatever the order of writes: timestamps are 1980-01-01.
void finish_torch_file(File const& file, TorchFilePlan const& plan, std::span<std::uint32_t const> crc32);

}  // namespace reshard
