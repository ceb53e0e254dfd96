#include "pipeline/view/view_page.hpp"

#include <array>

#include <sys/stat.h>
#include <unistd.h>

#include "core/base/compressed.hpp"
#include "core/base/files/file.hpp"
#include "core/base/files/paths.hpp"
#include "core/base/hash/sha256.hpp"
#include "core/formats/format.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// How every page begins: what may be overwritten.
constexpr std::string_view page_beginning = "<!doctype html>\n<!-- made by reshard view -->\n";
/// Short data stays readable.
constexpr std::size_t longest_plain_bytes = 64U << 10;
constexpr char const* advice = "Choose another path for -o.";

std::string replaced(std::string_view text, std::string_view characters,
                     std::span<std::string_view const> by) {
  std::string out;
  for (char const c : text) {
    std::size_t const at = characters.find(c);
    if (at == std::string_view::npos)
      out += c;
    else
      out += by[at];
  }
  return out;
}

std::string html_text(std::string_view text) {
  constexpr std::array<std::string_view, 5> by = {"&lt;", "&gt;", "&amp;", "&quot;", "&#39;"};
  return replaced(text, "<>&\"'", by);
}

/// Markup characters can only stand inside strings of a JSON document.
std::string json_in_html(std::string_view json) {
  constexpr std::array<std::string_view, 3> by = {"\\u003c", "\\u003e", "\\u0026"};
  return replaced(json, "<>&", by);
}

/// 'sha256-…' of a policy.
std::string policy_hash(std::string_view text) {
  Sha256 sum;
  sum.add(std::as_bytes(std::span(text)));
  std::string bytes;
  for (std::byte const byte : sum.digest()) bytes += static_cast<char>(byte);
  return "'sha256-" + base64(bytes) + "'";
}

std::string data_element(std::string_view json, PageData data) {
  bool const plain = data == PageData::plain || json.size() <= longest_plain_bytes;
  std::string text = plain ? json_in_html(json) : base64(deflated(json));
  return fmt::format("<script id=\"data\" type=\"{}\">{}</script>\n",
                     plain ? "application/json" : "text/x-deflate-base64", text);
}

}  // namespace

std::string page_html(PageAssets const& assets, std::string_view title, std::string_view json,
                      PageData data) {
  std::string html(page_beginning);
  html += "<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n";
  html += fmt::format(
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src {}; style-src {}; base-uri 'none'; form-action "
      "'none'\">\n",
      policy_hash(assets.script), policy_hash(assets.style));
  html +=
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n";
  html += fmt::format("<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n", html_text(title),
                      assets.style);
  html += assets.body;
  html += data_element(json, data);
  html += fmt::format("<script>{}</script>\n</body>\n</html>\n", assets.script);
  return html;
}

PageFile::PageFile(fs::path path, std::span<fs::path const> taken) : path_(std::move(path)) {
  std::string const shown = path_.string();
  if (shown.empty()) fail(ErrorKind::usage, "-o: the path is empty. {}", advice);
  std::error_code ignored;
  fs::path const real = resolved_path(path_);
  for (fs::path const& other : taken)
    if (holds(resolved_path(other), real))
      fail(ErrorKind::usage,
           "-o {}: is inside the checkpoint {}, into which nothing is written. "
           "{}",
           shown, other.string(), advice);
  if (auto const checkpoint = enclosing_checkpoint(real))
    fail(ErrorKind::usage,
         "-o {}: is inside the checkpoint {}, into which nothing is written: files such as "
         "*.safetensors in a folder make it one. {}",
         shown, checkpoint->string(), advice);
  if (!fs::is_directory(real.parent_path(), ignored))
    fail(ErrorKind::usage, "-o {}: there is no folder {} to write into. {}", shown,
         real.parent_path().string(), advice);
  if (::access(real.parent_path().c_str(), W_OK) != 0)
    fail(ErrorKind::usage, "-o {}: the page cannot be written: {}. {}", shown, system_reason(errno),
         advice);
  path_ = real;
  struct stat status {};
  if (::stat(real.c_str(), &status) != 0) return;  // free
  std::string beginning(page_beginning.size(), '\0');
  bool ours = S_ISREG(status.st_mode) && status.st_size >= static_cast<off_t>(beginning.size());
  if (ours) {
    File::open_for_reading(real, ErrorKind::usage)
        .read_at(0, std::as_writable_bytes(std::span(beginning)));
    ours = beginning == page_beginning;
  }
  if (!ours)
    fail(ErrorKind::usage,
         "-o {}: exists and is not a page of `reshard view`, so it is not overwritten. {}", shown,
         advice);
}

void PageFile::write(std::string_view html) const {
  fs::path const beside =
      path_.parent_path() / fmt::format(".{}.{}.part", path_.filename().string(), ::getpid());
  try {
    write_text_file(beside, html);
    rename_path(beside, path_);
    sync_directory(path_.parent_path());
  } catch (Error const&) {
    ::unlink(beside.c_str());
    throw;
  }
}

}  // namespace reshard
