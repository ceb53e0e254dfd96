#pragma once

#include "core/formats/format.hpp"

namespace reshard::test {

/// What a test's own format needs not say: it is never named, finds no files of a model, and is no
/// folder.
class ReadOnlyFormat : public Format {
 public:
  FormatWords words() const override { return {.help = "of a test", .sign = "a test's file"}; }
  bool probe(std::filesystem::path const& /*path*/) const override { return false; }
  Checkpoint open(std::filesystem::path const& /*path*/, OpenChoice const& /*choice*/,
                  HeaderExchange const& /*exchange*/) const override {
    refuse();
  }
  Inspection describe(std::filesystem::path const& /*path*/,
                      megatron::UserSizes const& /*sizes*/) const override {
    refuse();
  }
  std::optional<huggingface::Folder> model_files(Checkpoint const& /*source*/) const override {
    return std::nullopt;
  }

 private:
  [[noreturn]] static void refuse() {
    fail(ErrorKind::internal, "the test's format is not made for this");
  }
};

}  // namespace reshard::test
