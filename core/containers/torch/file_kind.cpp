#include "core/containers/torch/file_kind.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "core/containers/torch/little_endian.hpp"

namespace reshard {
namespace {

struct Beginning {
  std::string_view bytes;
  std::string_view kind;
};

using namespace std::string_view_literals;

constexpr std::array beginnings = {
    Beginning{"version https://git-lfs"sv,
              "a git-lfs pointer, not the file itself. Fetch it with 'git lfs pull'"sv},
    Beginning{"\x89HDF\r\n\x1a\n"sv, "an HDF5 file. Name it as the HDF5 source"sv},
    Beginning{"\x93NUMPY"sv, "a numpy array. Save it with torch.save"sv},
    Beginning{"GGUF"sv,
              "a GGUF file, which is not supported. Use the checkpoint it was made from"sv},
    Beginning{"\x1f\x8b"sv, "a gzip file. Unpack it"sv},
    Beginning{"\x28\xb5\x2f\xfd"sv, "a zstd file. Unpack it"sv},
    Beginning{"\xfd"
              "7zXZ"sv,
              "an xz file. Unpack it"sv},
    Beginning{"BZh"sv, "a bzip2 file. Unpack it"sv},
    Beginning{"#!"sv, "a script. Name the checkpoint"sv},
    Beginning{"\x80\x02"sv, "a plain pickle, not written by torch.save. Save it with torch.save"sv},
    Beginning{"\x80\x03"sv, "a plain pickle, not written by torch.save. Save it with torch.save"sv},
    Beginning{"\x80\x04"sv, "a plain pickle, not written by torch.save. Save it with torch.save"sv},
    Beginning{"\x80\x05"sv, "a plain pickle, not written by torch.save. Save it with torch.save"sv},
};

bool looks_like_html(std::string_view text) {
  std::size_t const first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return false;
  std::string start(text.substr(first, 14));
  std::ranges::transform(start, start.begin(), [](unsigned char letter) {
    return static_cast<char>(std::tolower(letter));
  });
  return start.starts_with("<!doctype html") || start.starts_with("<html") ||
         start.starts_with("<head");
}

}  // namespace

bool begins_like_safetensors(std::span<std::byte const> beginning) {
  return beginning.size() > 9 && load_little_endian<std::uint64_t>(beginning) < (1U << 27) &&
         beginning[8] == std::byte{'{'};
}

std::string file_kind(std::span<std::byte const> beginning) {
  std::string_view const text(reinterpret_cast<char const*>(beginning.data()), beginning.size());
  if (text.empty()) return "an empty file. Fetch it again from its origin";
  for (Beginning const& known : beginnings)
    if (text.starts_with(known.bytes)) return std::string(known.kind);
  if (text.size() > 262 && text.substr(257, 5) == "ustar")
    return "a tar archive (torch before 0.1.10, or a packed directory). Unpack it, or save it with a newer torch";
  if (looks_like_html(text)) return "a web page, probably a failed download. Fetch the file itself";
  if (begins_like_safetensors(beginning))
    return "a safetensors file. Name it as the safetensors source";
  if (text.find_first_not_of('\0') == std::string_view::npos)
    return "nothing but zero bytes, probably an interrupted copy. Fetch it again";
  if (text.starts_with('{')) return "a JSON file. Name the checkpoint";
  return "of an unknown kind. Fetch it again from its origin";
}

}  // namespace reshard
