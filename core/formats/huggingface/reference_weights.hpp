#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/formats/huggingface/folder.hpp"

namespace reshard::huggingface {

/// The weight files of a reference folder, where it has any: names of tensors, the file of each,
/// and the headers. A target of the same tensors gets the same files, byte for byte. Nothing is
/// read before it is asked for. Borrows the folder.
class ReferenceWeights {
 public:
  /// `layers`: the reference's number of each layer of the target; empty: the same.
  explicit ReferenceWeights(std::optional<Folder> const& reference, std::vector<Index> layers = {})
      : reference_(reference), layers_(std::move(layers)) {}

  /// Whether the reference has a tensor of this name, which has the target's number of its layer,
  /// or one that matches it ('*', '?').
  bool has(std::string_view target_name);

  /// Tensors and files: those of the index, or of its only file; empty without either.
  WeightMap const& weight_map();

  /// The first bytes of a weight file up to its data section, and the size of the whole file;
  /// nothing where the folder has no such file or it is no sound safetensors file (a pointer of git
  /// lfs, say). A failure of the disk is an Error of kind io. The first call reads the headers of
  /// all files of the index, many at a time.
  struct FileHeader {
    std::string bytes;
    std::uint64_t file_bytes = 0;
  };
  std::optional<FileHeader> const& header_of(std::string const& file);
  /// The same, and lets go of it: it is asked for once.
  std::optional<FileHeader> take_header(std::string const& file);

  /// Whether the index says what one of these tensors says, of so many bytes in these files: where
  /// its total_size is another, that of its own files is asked.
  bool has_index_of(std::unordered_map<SharedText, SharedText> const& file_of, std::uint64_t bytes);

 private:
  std::uint64_t data_bytes();
  void read_headers(std::vector<std::string> const& files);

  std::string reference_name(std::string_view name) const;

  std::optional<Folder> const& reference_;
  std::vector<Index> layers_;
  std::map<std::string, std::optional<FileHeader>> headers_;  ///< as far as they were asked for
  std::map<std::string, std::uint64_t> data_bytes_;           ///< of those that were taken
  std::optional<WeightMap> map_;  ///< of the only file, where there is no index
  std::optional<std::set<std::string, std::less<>>> names_;
};

}  // namespace reshard::huggingface
