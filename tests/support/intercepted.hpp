#pragma once

// What libraries in front of libc (LD_PRELOAD) have in common. Nothing here calls a function that
// one of them replaces.

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

namespace intercepted {

/// "" where it is not set.
inline std::string setting(char const* name) {
  char const* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

inline std::uint64_t number_in(std::string const& text) {
  return std::strtoull(text.c_str(), nullptr, 10);
}

inline std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    std::size_t const end = std::min(text.find(separator), text.size());
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

/// 0 for a name that is none.
inline int error_named(std::string const& name) {
  static std::map<std::string, int> const numbers = {
      {"EIO", EIO},     {"ENOSPC", ENOSPC}, {"EDQUOT", EDQUOT}, {"ESTALE", ESTALE},
      {"EINTR", EINTR}, {"EACCES", EACCES}, {"EINVAL", EINVAL}, {"ENOSYS", ENOSYS},
      {"EXDEV", EXDEV}, {"EBUSY", EBUSY},   {"ENOLCK", ENOLCK}, {"EOPNOTSUPP", EOPNOTSUPP}};
  auto const found = numbers.find(name);
  return found == numbers.end() ? 0 : found->second;
}

inline std::string target_of_link(std::string const& link) {
  std::array<char, 4096> path{};
  long const length = ::syscall(SYS_readlinkat, AT_FDCWD, link.c_str(), path.data(), path.size());
  return length < 0 ? "" : std::string(path.data(), static_cast<std::size_t>(length));
}

inline std::string path_of(int descriptor) {
  return target_of_link("/proc/self/fd/" + std::to_string(descriptor));
}

/// Absolute; a relative one begins at the folder.
inline std::string path_of(char const* name, int folder = AT_FDCWD) {
  std::string const path = name == nullptr ? "" : name;
  if (path.starts_with('/')) return std::filesystem::path(path).lexically_normal().string();
  std::string const base = folder == AT_FDCWD ? target_of_link("/proc/self/cwd") : path_of(folder);
  return std::filesystem::path(base + "/" + path).lexically_normal().string();
}

inline bool is_in(std::string const& path, std::string const& folder) {
  return path == folder || (path.starts_with(folder) && path[folder.size()] == '/');
}

inline std::size_t bytes_of(iovec const* parts, int count) {
  std::size_t bytes = 0;
  for (int i = 0; i < count; ++i) bytes += parts[i].iov_len;
  return bytes;
}

/// What open() has behind its flags; 0 for nothing.
inline mode_t mode_of(int flags, va_list more) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
}

template <class Function>
Function* next(char const* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace intercepted

/// The function behind this library.
#define RESHARD_REAL(function) \
  static auto* const real = intercepted::next<decltype(function)>(#function)
