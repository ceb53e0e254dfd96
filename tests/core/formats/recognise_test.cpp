// What a folder is taken for, by the names in it: one rule for every command.

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/formats/dcp/source.hpp"
#include "core/formats/format.hpp"
#include "tests/support/scratch_folder.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<FormatId>;

constexpr char const* hdf5_signature = "\x89HDF\r\n\x1a\n";

/// A safetensors file whose header is `json`.
std::string safetensors_bytes(std::string const& json) {
  std::string bytes;
  for (unsigned shift = 0; shift < 64; shift += 8)
    bytes += static_cast<char>(static_cast<std::uint64_t>(json.size()) >> shift & 0xff);
  return bytes + json;
}

class Recognise : public testing::Test {
 protected:
  fs::path make(std::string const& folder, std::vector<std::string> const& names) const {
    fs::path const path = scratch_.path() / folder;
    for (std::string const& name : names) {
      fs::create_directories((path / name).parent_path());
      std::string text = name.ends_with(".h5") ? hdf5_signature : "";
      if (name.ends_with("boxes.safetensors"))
        text = safetensors_bytes(R"({"__metadata__": {"DCP_SHARDING_INFO": "{}"}})");
      else if (name.ends_with(".safetensors"))
        text = safetensors_bytes("{}");
      std::ofstream(path / name, std::ios::binary) << text;
    }
    return path;
  }

  /// What the path is read as.
  static std::string chosen(fs::path const& path, FormatId wanted = FormatId::automatic) {
    Format const& format = choose_format(path, wanted);
    return &format == &dcp::boxed_safetensors() ? "boxes" : std::string(format.name());
  }
  /// What it may be by its names.
  static Ids found(fs::path const& path) {
    Ids ids;
    for (Format const* format : recognise(path)) ids.push_back(format->id());
    return ids;
  }

  static std::string refusal(fs::path const& path) {
    try {
      (void)choose_format(path);
    } catch (Error const& error) {
      EXPECT_EQ(error.kind(), ErrorKind::source);
      return error.what();
    }
    return "";
  }

  ScratchFolder scratch_{"recognise"};
};

TEST_F(Recognise, EachFormatByItsNames) {
  EXPECT_EQ(chosen(make("m", {"mp_rank_00/model_optim_rng.pt"})), "megatron");
  EXPECT_EQ(chosen(make("w", {"model.safetensors", "config.json"})), "huggingface");
  EXPECT_EQ(chosen(make("d", {".metadata", "__0_0.distcp"})), "dcp");
  EXPECT_EQ(chosen(make("b", {"boxes.safetensors"})), "boxes");
  EXPECT_EQ(chosen(make("h", {"model.h5"})), "hdf5");
  EXPECT_EQ(chosen(scratch_.path() / "h" / "model.h5"), "hdf5");
}

TEST_F(Recognise, AnHdf5FileBesideOtherWeightsIsAnotherPrograms) {
  fs::path const path = make("w", {"model.safetensors", "tf_model.h5"});
  EXPECT_EQ(found(path), Ids{FormatId::huggingface});
  EXPECT_EQ(chosen(path, FormatId::hdf5), "hdf5");
}

TEST_F(Recognise, OfSeveralFormatsTheJobChooses) {
  fs::path const path = make("x", {".metadata", "__0_0.distcp", "model.safetensors"});
  EXPECT_EQ(found(path), (Ids{FormatId::huggingface, FormatId::dcp}));
  EXPECT_NE(refusal(path).find("side by side: huggingface, dcp."), std::string::npos);
  EXPECT_EQ(chosen(path, FormatId::dcp), "dcp");
  EXPECT_EQ(chosen(path, FormatId::huggingface), "huggingface");
}

TEST_F(Recognise, BoxesAreFoundUnderBothNamesOfTheirFormat) {
  fs::path const path = make("b", {"boxes.safetensors"});
  EXPECT_EQ(chosen(path, FormatId::dcp), "boxes");
  EXPECT_EQ(chosen(path, FormatId::huggingface), "boxes");
}

TEST_F(Recognise, MistralsOwnFilesAreReadWhereTheyAreAloneOrChosen) {
  std::vector<std::string> const own = {"consolidated.safetensors", "params.json"};
  fs::path const alone = make("own", own);
  EXPECT_EQ(found(alone), Ids{FormatId::huggingface});
  EXPECT_EQ(chosen(alone), "mistral");
  EXPECT_EQ(chosen(alone, FormatId::huggingface), "mistral");
  fs::path const both =
      make("both", {"consolidated.safetensors", "params.json", "model.safetensors"});
  EXPECT_EQ(chosen(both), "huggingface");
  EXPECT_EQ(chosen(both, FormatId::mistral), "mistral");
  EXPECT_EQ(chosen(make("lone", {"consolidated.safetensors"})), "huggingface");
}

TEST_F(Recognise, AMetadataJsonIsMegatronsWhereItNamesABackend) {
  fs::path const path = make("x", {"model.safetensors", "metadata.json"});
  std::ofstream(path / "metadata.json") << R"({"author": "another program"})";
  EXPECT_EQ(found(path), Ids{FormatId::huggingface});
  std::ofstream(path / "metadata.json") << R"({"sharded_backend": "torch_dist"})";
  EXPECT_EQ(found(path), (Ids{FormatId::huggingface, FormatId::dcp}));
}

TEST_F(Recognise, WhatIsNoneIsRefusedWithTheReason) {
  EXPECT_NE(refusal(scratch_.path() / "absent").find("does not exist"), std::string::npos);
  EXPECT_NE(refusal(make("c", {"config.json"})).find("no weights"), std::string::npos);
  EXPECT_NE(refusal(make("g", {"model.gguf"})).find("llama.cpp"), std::string::npos);
  make("f", {"weights.bin"});
  EXPECT_NE(refusal(scratch_.path() / "f" / "weights.bin"), "");
}

TEST_F(Recognise, OfNoneTheSignsOfAllFormatsAreListed) {
  std::string const said = refusal(make("t", {"thesis.tex"}));
  EXPECT_NE(
      said.find(
          "no mp_rank_* or iter_* folder (Megatron), no *.safetensors (Hugging Face), "
          "no consolidated*.safetensors and params.json (Mistral), "
          "no .metadata (torch_dist, DCP), no HDF5 file, no latest or *_states.pt (DeepSpeed), "
          "no model_world_size_*_rank_*.pt (FSDP). It holds thesis.tex."),
      std::string::npos)
      << said;
}

/// Also beside a file that alone would be another program's.
TEST_F(Recognise, ADamagedFolderIsLeftToTheReaderOfItsFormat) {
  for (char const* name : {"latest_checkpointed_iteration.txt", "iter_0000010/notes",
                           "release/notes", "layer_00_states.pt", "zero_pp_rank_0_optim.pt"})
    EXPECT_EQ(chosen(make(fmt::format("m-{}", name), {name, "model.pt"})), "megatron") << name;
}

TEST_F(Recognise, ASaveThatWasInterruptedIsTold) {
  for (char const* name : {"metadata.json", "common.pt"}) {
    std::string const said = refusal(make(fmt::format("d-{}", name), {name, "model.pt"}));
    std::string const part =
        fmt::format("holds {} and has no .metadata, which is written last.", name);
    EXPECT_NE(said.find(part), std::string::npos) << said;
  }
}

TEST_F(Recognise, AFileInsideACheckpointIsKnownToBe) {
  fs::path const path = make("m", {"mp_rank_00/model_optim_rng.pt"});
  EXPECT_EQ(enclosing_checkpoint(path / "deeper" / "report.json"), path);
  EXPECT_EQ(enclosing_checkpoint(make("n", {"notes.txt"}) / "report.json"), std::nullopt);
  EXPECT_EQ(enclosing_checkpoint(make("h", {"model.h5"}) / "report.json"), std::nullopt)
      << "a lone HDF5 file may lie anywhere";
}

}  // namespace
}  // namespace reshard
