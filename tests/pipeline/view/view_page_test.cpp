#include "pipeline/view/view_page.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/compressed.hpp"
#include "core/base/hash/sha256.hpp"
#include "core/base/text/json.hpp"
#include "pipeline/view/view_model.hpp"
#include "tests/support/expect_refused.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr char const* hostile = "</script><img src=x onerror=alert(1)>\"'&amp;\x01\n<!-- <script>";

std::string between(std::string const& text, std::string_view begin, std::string_view end) {
  std::size_t const from = text.find(begin);
  EXPECT_NE(from, std::string::npos) << begin;
  std::size_t const at = from + begin.size();
  return text.substr(at, text.find(end, at) - at);
}

LayoutView hostile_view() {
  LayoutView view;
  view.title = hostile;
  view.warnings = {hostile};
  view.sides.push_back({hostile,
                        hostile,
                        hostile,
                        hostile,
                        Mesh({{hostile, 2}}),
                        {{hostile, hostile, {0}, 8, 1, "0", ""}},
                        {{0, 2}, {0, 2}}});
  view.stored = {hostile};
  view.tensors.push_back({hostile, 0, DType::bf16, {hostile, "b"}, {2, 2}, {}});
  view.tensors.back().boxes[0] = {{0, 0, 0, 0, 4}};
  return view;
}

TEST(LayoutJson, KeepsEveryNameAsItIs) {
  Json const json = parse_json(layout_json(hostile_view()), "view");
  EXPECT_EQ(*json.find("title")->text(), hostile);
  EXPECT_EQ(*json.find("stored")->items()->front().text(), hostile);
  Json const& tensor = json.find("tensors")->items()->front();
  EXPECT_EQ(*tensor.find("name")->text(), hostile);
  EXPECT_EQ(tensor.find("boxes")->items()->front().items()->front().dump(),
            "[0, 0, 0, 0, 2, 0, 2]");
  EXPECT_EQ(
      *json.find("sides")->items()->front().find("owners")->items()->front().find("file")->text(),
      hostile);
}

TEST(LayoutJson, GivesTheElementsOfBoxesWithGaps) {
  LayoutView view = hostile_view();
  view.tensors.back().boxes[0] = {{0, 0, box_has_gaps, 0, 3}};
  Json const json = parse_json(layout_json(view), "view");
  EXPECT_EQ(json.find("tensors")
                ->items()
                ->front()
                .find("boxes")
                ->items()
                ->front()
                .items()
                ->front()
                .dump(),
            "[0, 0, 4, 0, 2, 0, 2, 3]");
}

TEST(Page, LetsNoNameBecomeMarkup) {
  std::string const html = page_html(layout_assets(), hostile, layout_json(hostile_view()));
  EXPECT_EQ(html.find("<img"), std::string::npos);
  EXPECT_EQ(html.find("<!-- <script>"), std::string::npos);
  EXPECT_NE(html.find("<title>&lt;/script&gt;&lt;img"), std::string::npos);
  std::string const data =
      between(html, "<script id=\"data\" type=\"application/json\">", "</script>");
  EXPECT_EQ(*parse_json(data, "page").find("title")->text(), hostile);
}

TEST(Page, AllowsItsOwnScriptAndStyleAndNothingElse) {
  std::string const html = page_html(layout_assets(), "t", "{}");
  std::string const policy = between(html, "Content-Security-Policy\" content=\"", "\"");
  EXPECT_TRUE(policy.starts_with("default-src 'none'; script-src 'sha256-")) << policy;
  EXPECT_EQ(policy.find("unsafe"), std::string::npos);
  std::string const script = between(html, "</script>\n<script>", "</script>");
  Sha256 sum;
  sum.add(std::as_bytes(std::span(script)));
  std::string bytes;
  for (std::size_t i = 0; i < 64; i += 2)
    bytes += static_cast<char>(std::stoi(sum.hex().substr(i, 2), nullptr, 16));
  EXPECT_NE(policy.find("script-src 'sha256-" + base64(bytes) + "'"), std::string::npos);
  for (char const* outside : {"http://", "https://", "src=", "href=", "@import", "url("}) {
    std::size_t const at = html.find(outside);
    EXPECT_TRUE(at == std::string::npos || html.compare(at, 26, "http://www.w3.org/2000/svg") == 0)
        << outside;
  }
}

TEST(Page, CompressesLongDataUnlessAskedNotTo) {
  std::string const json = "[\"" + std::string(200'000, '<') + "\"]";
  std::string const packed = page_html(layout_assets(), "t", json);
  EXPECT_EQ(between(packed, "<script id=\"data\" type=\"text/x-deflate-base64\">", "</script>"),
            base64(deflated(json)));
  std::string const plain = page_html(layout_assets(), "t", json, PageData::plain);
  EXPECT_EQ(parse_json(between(plain, "type=\"application/json\">", "</script>"), "page"),
            parse_json(json, "json"));
}

std::string refusal(fs::path const& path, std::vector<fs::path> const& taken = {}) {
  try {
    PageFile const file(path, taken);
  } catch (Error const& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.sentence();
  }
  return "";
}

TEST(PageFile, ReplacesPagesAndNothingElse) {
  ScratchFolder const folder("view_page");
  fs::path const page = folder.path() / "layout.html";
  for (char const* title : {"first", "second"})
    PageFile(page).write(page_html(layout_assets(), title, "{}"));
  EXPECT_NE(read_text_file(page, 1 << 20).find("<title>second</title>"), std::string::npos);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);  // nothing beside it
  fs::path const weights = folder.file("weights", std::vector<std::byte>(100, std::byte{7}));
  EXPECT_NE(refusal(weights).find("is not a page"), std::string::npos);
  EXPECT_EQ(bytes_of(weights), std::vector<std::byte>(100, std::byte{7}));
  EXPECT_NE(refusal(folder.file("empty", {})).find("is not a page"), std::string::npos);
  EXPECT_NE(refusal(folder.path()).find("is not a page"), std::string::npos);
  EXPECT_NE(refusal("/dev/full").find("is not a page"), std::string::npos);
  EXPECT_NE(refusal("/nowhere/at/all/x.html").find("no folder"), std::string::npos);
  EXPECT_NE(refusal("").find("empty"), std::string::npos);
  fs::path const pipe = folder.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_NE(refusal(pipe).find("is not a page"), std::string::npos);
}

TEST(PageFile, IsNotPutIntoACheckpoint) {
  ScratchFolder const folder("view_page");
  fs::create_directories(folder.path() / "model" / "inside");
  fs::create_directory_symlink(folder.path() / "model", folder.path() / "link");
  for (char const* name : {"model/x.html", "model/inside/x.html", "link/x.html"})
    EXPECT_NE(refusal(folder.path() / name, {folder.path() / "model"})
                  .find("into which nothing is written"),
              std::string::npos);
  EXPECT_EQ(refusal(folder.path() / "model.html", {folder.path() / "model"}), "");
}

TEST(PageFile, IsNotPutWhereAFileWouldBelongToACheckpointOrNoFileMayBe) {
  ScratchFolder const folder("view_page");
  fs::create_directories(folder.path() / "model");
  write_text_file(folder.path() / "model" / "model.safetensors", "x");
  test::expect_refused(ErrorKind::usage, "files such as *.safetensors in a folder make it one",
                       [&] { PageFile const file(folder.path() / "model" / "x.html"); });
  if (::geteuid() != 0) GTEST_SKIP() << "needs two users, so root";
  ::chmod(folder.path().c_str(), 0755);
  ASSERT_EQ(::setresuid(65534, 65534, 0), 0);  // access() goes by the real user
  std::string const sentence = refusal(folder.path() / "x.html");
  ASSERT_EQ(::setresuid(0, 0, 0), 0);
  EXPECT_NE(sentence.find("the page cannot be written: Permission denied"), std::string::npos)
      << sentence;
}

}  // namespace
}  // namespace reshard
