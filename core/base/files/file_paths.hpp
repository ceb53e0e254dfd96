#pragma once

#include <cstddef>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/tables/made_iterator.hpp"

namespace reshard {

/// Paths of the files of a checkpoint, of which a job of 8,192 ranks has 16,384: their texts in one
/// block, because a std::filesystem::path takes some 500 bytes. Elements are made on access, so
/// there are no references to them.
class FilePaths {
 public:
  using value_type = std::filesystem::path;
  using Iterator = MadeIterator<FilePaths, std::filesystem::path>;

  FilePaths() = default;
  FilePaths(std::vector<std::filesystem::path> const& paths) { add(paths); }
  FilePaths(std::initializer_list<std::filesystem::path> paths) { add(paths); }
  operator std::vector<std::filesystem::path>() const { return {begin(), end()}; }

  std::size_t size() const { return ends_.size(); }
  bool empty() const { return ends_.empty(); }
  std::filesystem::path operator[](std::size_t at) const { return text(at); }
  std::string_view text(std::size_t at) const {
    std::size_t const first = at == 0 ? 0 : ends_[at - 1];
    return std::string_view(texts_).substr(first, ends_[at] - first);
  }
  std::filesystem::path front() const { return (*this)[0]; }
  std::filesystem::path back() const { return (*this)[size() - 1]; }
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, size()}; }

  void push_back(std::filesystem::path const& path) {
    texts_ += path.native();
    ends_.push_back(texts_.size());
  }
  template <class Paths>
  void add(Paths const& paths) {
    for (std::filesystem::path const& path : paths) push_back(path);
  }

 private:
  std::string texts_;
  std::vector<std::size_t> ends_;  ///< of each text in texts_
};

}  // namespace reshard
