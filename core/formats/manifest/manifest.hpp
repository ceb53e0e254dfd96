#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/files/file.hpp"
#include "core/base/tables/integers.hpp"
#include "core/base/tables/shared_shape.hpp"
#include "core/base/text/json.hpp"
#include "core/base/text/shared_text.hpp"

namespace reshard {

inline constexpr std::string_view manifest_name = "reshard.json";
/// Of its form; readers refuse another one.
inline constexpr int manifest_version = 1;
/// Megatron-Core's own: {"algorithm": "sha256", "files": {"path": "hex"}}.
inline constexpr std::string_view integrity_name = "integrity.json";

/// The digest of one logical tensor, or of one opaque object.
struct TensorDigest {
  SharedText name;
  SharedText dtype;  ///< as docs/formats spell it ("bf16"); "" for an object
  SharedShape shape;
  std::vector<std::string> axes;
  std::uint64_t crc64 = 0;
  int add = 0;  ///< what stored values have over logical ones (a norm stored without its one: -1)
  friend bool operator==(TensorDigest const&, TensorDigest const&) = default;
};

struct FileRecord {
  std::string path;  ///< relative to the checkpoint, '/' between names
  std::uint64_t size_bytes = 0;
  std::uint64_t xxh3 = 0;
  friend bool operator==(FileRecord const&, FileRecord const&) = default;
};

/// A file as it was when it had been checked: while it is the same, so are its bytes.
struct StampedFile {
  std::string path;  ///< as of FileRecord
  FileStamp stamp;   ///< without a device
  friend bool operator==(StampedFile const&, StampedFile const&) = default;
};

/// Sums by which a later target takes over parts of a file (`target.incremental_from`).
struct FileBlockSums {
  std::string path;      ///< as of FileRecord
  std::string verified;  ///< when it was read back from the device: 2026-11-26T02:00:00Z
  std::vector<std::uint64_t> crc64;                    ///< of its blocks, the last one shorter
  std::optional<std::uint64_t> layout = std::nullopt;  ///< what lies where in it (file_layouts)
  friend bool operator==(FileBlockSums const&, FileBlockSums const&) = default;
};

/// The record of a checkpoint that `reshard` wrote.
struct Manifest {
  std::string tool_version;
  std::string format;
  std::string
      map;  ///< whose names the tensors have: of a family, "mcore", or "none" for stored names
  std::vector<std::string> frozen;  ///< patterns of parameters without optimizer state, as a reader
                                    ///< of the files has to be told (model.frozen)
  Index vocab = 0;  ///< rows of the vocabulary, where only the source's record told them and stored
                    ///< names are kept; 0: the tensors say it, or nothing does
  Json source;      ///< path, format, layout, total digest where known
  Json job;         ///< the complete job
  std::vector<TensorDigest> tensors;
  std::vector<TensorDigest> objects;
  std::vector<FileRecord> files;    ///< all but the manifest itself; none where some were not read
                                    ///< back completely
  std::vector<StampedFile> stamps;  ///< of files with tensors that a later job may clone from
  std::uint64_t block_bytes = 0;    ///< of `blocks`; 0 without them
  std::vector<FileBlockSums> blocks;  ///< of files with tensors that a later job may take over
  std::string total;                  ///< total_digest(tensors)
  std::filesystem::path root = {};    ///< its folder, from which paths count: is not written, and
                                      ///< set by who looks files up
  friend bool operator==(Manifest const&, Manifest const&) = default;
};

/// 16 lower-case hexadecimal digits, and back (nothing when it is no such text).
std::string hex64(std::uint64_t value);
std::optional<std::uint64_t> parse_hex64(std::string_view text);

/// The fingerprint of a model: XXH3-128 (32 digits) of the lines "name dtype [shape] crc64\n",
/// names as JSON texts, in ascending order of names.
///
///   "decoder.norm" bf16 [2, 64] 00000000000000ff
std::string total_digest(std::span<TensorDigest const> tensors);
/// The same, where their order by names is known.
std::string total_digest(std::span<TensorDigest const> tensors, std::vector<std::uint32_t> order);

/// The parts of a manifest that are read.
enum class ManifestScope {
  all,
  files,  ///< no tensors and no objects: their lists are neither checked nor kept
};

std::string manifest_text(Manifest const& manifest);
/// `file` is for messages. Errors of kind source: no JSON, missing or wrong members, paths that
/// leave the checkpoint, a total that disagrees.
Manifest parse_manifest(std::string_view text, std::string const& file,
                        ManifestScope scope = ManifestScope::all);
/// The manifest of a checkpoint, when it has one.
std::optional<Manifest> find_manifest(std::filesystem::path const& checkpoint,
                                      ManifestScope scope = ManifestScope::all);
/// Its text, not parsed, for those who need the bytes as well.
std::optional<std::string> find_manifest_text(std::filesystem::path const& checkpoint);

/// integrity.json as Megatron-Core writes and reads it.
struct Integrity {
  struct Entry {
    std::string path;
    std::string sha256;  ///< lower-case hexadecimal
  };
  std::vector<Entry> files;  ///< ascending paths
};
std::string integrity_text(Integrity const& integrity);
Integrity parse_integrity(std::string_view text, std::string const& file);

}  // namespace reshard
