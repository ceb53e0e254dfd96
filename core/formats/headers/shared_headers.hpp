#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/files/file.hpp"
#include "core/containers/safetensors/safetensors.hpp"
#include "core/formats/checkpoint.hpp"
#include "core/formats/headers/header_exchange.hpp"

namespace reshard {

/// Whether the headers of several files may be read at a time; not with a library for a single
/// thread.
enum class HeaderReads { overlapped, in_turn };

/// The header of a file, as bytes.
struct HeaderBytes {
  std::string own;  ///< of this file
  /// Common to many files: a rank sends and stores each distinct one once. nullptr is "".
  std::shared_ptr<std::string const> common;
};

/// The headers of all files, as sent by the ranks.
class SharedHeaders {
 public:
  std::size_t size() const { return files_.size(); }
  std::string_view own(std::size_t file) const { return files_[file].own; }
  /// The number of a file's common bytes.
  std::uint32_t common_of(std::size_t file) const { return files_[file].common; }
  /// The distinct common bytes, by number.
  std::vector<std::string_view> const& commons() const { return commons_; }

 private:
  friend SharedHeaders shared_headers(Checkpoint&, HeaderExchange const&,
                                      std::function<HeaderBytes(File const&)> const&, HeaderReads);
  struct OfFile {
    std::string_view own;
    std::uint32_t common = 0;
  };
  std::vector<std::string> sent_;  ///< by rank; the views are of them
  std::vector<OfFile> files_;
  std::vector<std::string_view> commons_;
};

/// Reads the header of every file of the source, the ranks in turn, and distributes all of them to
/// all ranks. Each file is stamped first, from the same descriptor: source.stamps. Pre:
/// source.files is the same on every rank. Collective.
SharedHeaders shared_headers(Checkpoint& source, HeaderExchange const& exchange,
                             std::function<HeaderBytes(File const&)> const& read,
                             HeaderReads reads = HeaderReads::overlapped);

/// The header of every safetensors file, by shared_headers().
std::vector<safetensors::Header> shared_safetensors_headers(Checkpoint& source,
                                                            HeaderExchange const& exchange);

}  // namespace reshard
